"""However a vector travels, it arrives to the bit as vectors.npy has it."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from service.api.embeddings.responses import json_rows
from service.embeddings.table import Table
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import Live
from tests.service.embeddings.tables import make_ids

RAW, NPY = "application/octet-stream", "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
ROWS, DIM = 300, 24
KINDS = ("int", "shuffled", "str")


@pytest.fixture(scope="module")
def tables(shared: Live) -> dict[str, Table]:
    return {
        kind: put_version(shared.store, shared.settings, vectors=odd_numbers(ROWS, DIM), ids=kind, labels=3)
        for kind in KINDS
    }


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tables: dict[str, Table]) -> tuple[Table, list[Any], Any]:
    """A table, its ids, and its vectors as numpy reads them from the file."""
    found = tables[request.param]
    return found, list(make_ids(ROWS, request.param)), np.load(found.directory / "vectors.npy")


def odd_numbers(rows: int, dim: int) -> NDArray[np.float32]:
    """Of every magnitude that float32 has: subnormal, huge, negative zero."""
    random = np.random.default_rng(7)
    values = random.standard_normal((rows, dim)) * 10.0 ** random.integers(-44, 17, (rows, dim))
    values[0, :4] = -0.0, 1e-45, 16777217, 0.1
    return values.astype(np.float32)


def same(found: Any, expected: NDArray[np.float32]) -> None:
    found = np.asarray(found, np.float64).astype(np.float32)  # as a JSON reader gives them
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def arrow(content: bytes) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = pa.ipc.open_stream(content).read_all().to_pydict()
    return columns


def test_json_digits_give_back_every_kind_of_float32() -> None:
    random = np.random.default_rng(1)
    bits = random.integers(0, 2**32, 400_000, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)][:390_000].reshape(-1, 10)
    same(json.loads(b"".join(json_rows(values))), values)
    assert b"".join(json_rows(np.empty((0, 5), np.float32))) == b"[]"


def test_one_node_in_every_form(shared: Live, table: tuple[Table, list[Any], Any]) -> None:
    opened, ids, vectors = table
    names = opened.info.classes
    assert names is not None
    for row in (0, 1, 2, 3, 4, 150, ROWS - 1):
        path = f"/v1/embeddings/{opened.info.version}/nodes/{quote(str(ids[row]), safe='')}"
        answer = shared.http.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["nml-version"] == opened.info.version
        document = answer.json()
        assert document["id"] == ids[row]
        assert document["version"] == opened.info.version
        number = int(np.load(opened.directory / "labels.npy")[row])
        assert document.get("label") == (None if number < 0 else names[number])
        same(document["vector"], vectors[row])
        raw = shared.http.get(path, headers={"Accept": RAW})
        assert raw.headers["content-type"] == RAW
        assert raw.content == vectors[row].tobytes()
        same(np.load(io.BytesIO(shared.http.get(path, headers={"Accept": NPY}).content)), vectors[row])
        columns = arrow(shared.http.get(path, headers={"Accept": ARROW}).content)
        assert columns["id"] == [ids[row]]
        same(columns["vector"], vectors[row : row + 1])


def test_an_id_that_is_no_utf8_is_no_node(shared: Live) -> None:
    """The server shows us U+FFFD where it cannot decode an address; a node may be called that."""
    ids = ["\ufffd", "a\ufffd", "\ufffd" * 3, "ü"]
    version = put_version(shared.store, shared.settings, 4, 4, ids).info.version
    for text in ("%FF", "a%FF", "%C3%28", "%ED%A0%80", "%EF%BF%BD%FF", "%FC"):
        for method in ("GET", "HEAD"):
            answer = shared.http.request(method, f"/v1/embeddings/{version}/nodes/{text}")
            assert (answer.status_code, answer.headers["nml-version"]) == (404, version), text
            assert answer.headers["content-type"] == "application/problem+json"
    assert "UTF-8" in shared.http.get(f"/v1/embeddings/{version}/nodes/%FF").json()["detail"]
    for name in ids:
        answer = shared.http.get(f"/v1/embeddings/{version}/nodes/{quote(name, safe='')}")
        assert (answer.status_code, answer.json()["id"]) == (200, name)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300])
def test_many_nodes_in_every_form(shared: Live, table: tuple[Table, list[Any], Any], count: int) -> None:
    opened, ids, vectors = table
    rows = np.random.default_rng(count).integers(0, ROWS, count)
    asked: list[Any] = [ids[row] for row in rows]
    unknown = ["not there", 10**30, "é\u0301/"]
    for at, name in enumerate(unknown):
        asked.insert(at * 2, name)
    known = np.array([name not in unknown for name in asked], bool)
    path = f"/v1/embeddings/{opened.info.version}/lookup"

    def answered(form: str) -> Any:
        answer = shared.http.post(path, json={"ids": asked}, headers={"Accept": form})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == form
        shape = [int(answer.headers[f"nml-{name}"]) for name in ("rows", "dimension", "unknown")]
        assert shape == [len(asked), DIM, 3]
        assert answer.headers["nml-version"] == opened.info.version
        return answer

    document = answered("application/json").json()
    assert document["unknown"] == unknown
    assert document["ids"] == [ids[row] for row in rows]
    same(np.array(document["vectors"]).reshape(-1, DIM), vectors[rows])
    for form in (RAW, NPY):
        content = answered(form).content
        found = np.frombuffer(content, "<f4").reshape(-1, DIM) if form == RAW else np.load(io.BytesIO(content))
        assert np.isnan(found[~known]).all()
        assert found[known].tobytes() == vectors[rows].tobytes()
    columns = arrow(answered(ARROW).content)
    assert [vector is not None for vector in columns["vector"]] == known.tolist()
    assert [str(name) for name in columns["id"]] == [str(name) for name in asked]
    found = np.array([vector for vector in columns["vector"] if vector is not None], np.float32).reshape(-1, DIM)
    assert found.tobytes() == vectors[rows].tobytes()


def test_number_and_its_text_are_one_id(shared: Live, tables: dict[str, Table]) -> None:
    for kind in ("int", "str"):
        version = tables[kind].info.version
        name = 1  # the second text is "1"
        both = shared.http.post(f"/v1/embeddings/{version}/lookup", json={"ids": [name, str(name)]}).json()
        assert both["unknown"] == []
        assert both["vectors"][0] == both["vectors"][1]
        shown = shared.http.get(f"/v1/embeddings/{version}/nodes/{name}").json()
        assert shown["id"] == (name if kind == "int" else str(name))
        assert shown["vector"] == both["vectors"][0]


NASTY = [
    "a/b", "/", "a//b/", "..", "../../etc/passwd", ".", " ", " a ", "a b", "100%", "%2F", "%25", "a?b=c&d", "#x", "+",
    "a;b", "\n", "a\nb\r", "\t", "é", "e\u0301", "\u202e", "日本", "💩", "\U0010ffff", '"', "\\", "'; DROP--",
    "nodes/1", "1.5", "-1", "+1", "01", "null", "true", "{}", "[1]", "\x7f", "\x01", "a" * 2_000, "lookup", "",
]  # fmt: skip


def test_nasty_ids(shared: Live) -> None:
    vectors = odd_numbers(len(NASTY), 4)
    version = put_version(shared.store, shared.settings, vectors=vectors, ids=NASTY).info.version
    for row, name in enumerate(NASTY):
        encoded = quote(name, safe="").replace(".", "%2E")
        answer = shared.http.get(f"/v1/embeddings/{version}/nodes/{encoded}", headers={"Accept": RAW})
        assert (answer.status_code, answer.content) == (200, vectors[row].tobytes()), name
        assert shared.http.get(f"/v1/embeddings/{version}/nodes/{encoded}").json()["id"] == name
    found = shared.http.post(f"/v1/embeddings/{version}/lookup", json={"ids": NASTY}).json()
    assert (found["ids"], found["unknown"]) == (NASTY, [])
    assert shared.http.get(f"/v1/embeddings/{version}/nodes/a%00b").status_code == 400


@pytest.mark.parametrize(
    "accept, form",
    [
        (None, "application/json"), ("*/*", "application/json"), ("application/*", "application/json"),
        (f"{RAW}, application/json;q=0.5", RAW), (f"application/json;q=0.2, {ARROW};q=0.9", ARROW),
        (f"{NPY};q=1.0, */*;q=0.1", NPY), ("text/html, */*;q=0.1", "application/json"),
        (f"application/json;q=0, {NPY}", NPY), ("*/*;q=0.5, application/json;q=0", RAW),
        (f"{NPY.upper()} ; Q=1", NPY), (f"text/html,{RAW}", RAW), (f";;;,{RAW}", RAW),
        ("text/html", None), ("application/json;q=0", None), ("", None), ("application/json;q=x", None),
        ("image/*", None), ("application/json;q=7", None), ("x" * 5_000, None),
    ],
)  # fmt: skip
def test_form_is_as_accept_says(shared: Live, tables: dict[str, Table], accept: str | None, form: str | None) -> None:
    version = tables["int"].info.version
    request = shared.http.build_request("GET", f"/v1/embeddings/{version}/nodes/1")
    del request.headers["accept"]
    if accept is not None:
        request.headers["accept"] = accept
    answer = shared.http.send(request)
    assert answer.headers["vary"] == "Accept"
    if form is None:
        assert answer.status_code == 406
        assert RAW in answer.json()["detail"]
    else:
        assert (answer.status_code, answer.headers["content-type"]) == (200, form)


def test_what_the_client_has_is_not_sent_again(shared: Live, tables: dict[str, Table]) -> None:
    version = tables["int"].info.version
    shared.store.aliases.move("kept", version, owner=None)
    tags = set()
    for ref, cache in ((version, "private, max-age=31536000, immutable"), ("kept", "private, no-cache")):
        for form in ("application/json", RAW, NPY, ARROW):
            path, headers = f"/v1/embeddings/{ref}/nodes/7", {"Accept": form}
            first = shared.http.get(path, headers=headers)
            tag = first.headers["etag"]
            tags.add(tag)
            assert tag.startswith('"')
            assert first.headers.get_list("cache-control") == [cache]
            for match in (tag, f'"x", W/{tag}', "*"):
                again = shared.http.get(path, headers=headers | {"If-None-Match": match})
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == tag
                assert again.headers["cache-control"] == cache
                assert again.headers["nml-version"] == version
            assert shared.http.get(path, headers=headers | {"If-None-Match": '"x"'}).status_code == 200
    assert len(tags) == 4  # by form, and the same by alias
    other = tables["str"].info.version
    shared.store.aliases.move("kept", other, owner=None)
    moved = shared.http.get("/v1/embeddings/kept/nodes/1", headers={"If-None-Match": ", ".join(tags)})
    assert (moved.status_code, moved.headers["nml-version"]) == (200, other)
    assert shared.http.get("/v1/jobs").headers.get_list("cache-control") == ["no-store"]


def test_headers_are_those_described(shared: Live) -> None:
    """Of a question's answer the document names exactly the headers of our own that come."""
    version = put_version(shared.store, shared.settings, 20, 4).info.version
    paths = shared.app.openapi()["paths"]
    for question, may in (("lookup", {"nml-rows", "nml-dimension", "nml-unknown"}), ("neighbors", {"nml-unknown"})):
        answer = shared.http.post(f"/v1/embeddings/{version}/{question}", json={"ids": [1, 99]})
        ours = {name for name in answer.headers if name.startswith("nml-")}
        described = paths["/v1/embeddings/{version}/" + question]["post"]["responses"]["200"]["headers"]
        assert ours == {name.lower() for name in described} == {"nml-version", *may}
    embedded = paths["/v1/embeddings/{version}/embed"]["post"]["responses"]["200"]["headers"]
    assert set(embedded) == {"Nml-Version", "Nml-Rows", "Nml-Dimension"}


def test_form_that_there_is_not_still_tells_the_version(shared: Live) -> None:
    version = put_version(shared.store, shared.settings, 20, 4).info.version
    answer = shared.http.get("/v1/embeddings/latest/nodes/1", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["nml-version"]) == (406, version)
