"""Neighbours are those that numpy finds by trying all, whatever the question's form."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from service.embeddings.table import Table
from tests.service.api.embeddings.published import fields_of, put_version
from tests.service.api.server import Live
from tests.service.embeddings.tables import make_ids

ROWS, DIM = 400, 16
IDS: list[Any] = list(make_ids(ROWS, "str"))


@pytest.fixture(scope="module")
def table(shared: Live) -> Table:
    vectors = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
    vectors[17] = 0
    return put_version(shared.store, shared.settings, vectors=vectors, ids="str", labels=4)


def brute_force(
    vectors: NDArray[np.float32], query: NDArray[np.float32], k: int, metric: str, among: Any, exclude: int | None
) -> tuple[list[int], NDArray[np.float32]]:
    """Every product in float64, rounded to float32, sorted by score and then by row."""
    x, q = vectors.astype(np.float64), query.astype(np.float64)
    scores = x @ q
    if metric == "cosine":
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(q)
        scores = np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0)
    rows = [row for row in (range(len(x)) if among is None else sorted(among)) if row != exclude]
    rows.sort(key=lambda row: (-np.float32(scores[row]), row))
    return rows[:k], scores[rows[:k]].astype(np.float32)


def ask(live: Live, table: Table, question: dict[str, Any], status: int = 200) -> Any:
    answer = live.http.post(f"/v1/embeddings/{table.info.version}/neighbors", json=question)
    assert answer.status_code == status, answer.text
    return answer.json()


def check(
    table: Table, result: dict[str, Any], query: Any, k: int, metric: str, among: Any = None, own: Any = None
) -> None:
    rows, scores = brute_force(table.vectors, query, k, metric, among, own)
    assert result["ids"] == [IDS[row] for row in rows]
    np.testing.assert_allclose(result["scores"], scores, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("k", [1, 10, 1_000])
def test_by_ids(shared: Live, table: Table, metric: str, k: int) -> None:
    rows = [0, 5, 399, 5]
    asked = [IDS[row] for row in rows]
    found = ask(shared, table, {"ids": [*asked[:2], "absent", *asked[2:]], "k": k, "metric": metric})
    assert (found["version"], found["metric"], found["backend"]) == (table.info.version, metric, "exact")
    assert (found["k"], found["unknown"], found["unknown_in_filter"]) == (k, ["absent"], [])
    assert [result["query"] for result in found["results"]] == asked
    for row, result in zip(rows, found["results"], strict=True):
        check(table, result, table.vectors[row], k, metric, own=row)
        assert "vectors" not in result
    with_self = ask(shared, table, {"ids": [IDS[5]], "k": k, "include_self": True})["results"][0]
    check(table, with_self, table.vectors[5], k, "cosine")
    assert with_self["ids"][0] == IDS[5]


def test_by_vectors_in_every_form(shared: Live, table: Table) -> None:
    queries = np.random.default_rng(4).standard_normal((7, DIM)).astype(np.float32)
    path = f"/v1/embeddings/{table.info.version}/neighbors"
    by_json = ask(shared, table, {"vectors": queries.tolist(), "k": 6, "metric": "dot", "include_vectors": True})
    for at, result in enumerate(by_json["results"]):
        assert result["query"] == at
        check(table, result, queries[at], 6, "dot")
        rows = [IDS.index(name) for name in result["ids"]]
        assert np.array(result["vectors"], np.float32).tobytes() == table.vectors[rows].tobytes()
    options = {"k": 6, "metric": "dot", "include_vectors": True, "include_self": True}
    saved, wide, turned = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(saved, queries)
    np.save(wide, queries.astype(np.float64))
    np.save(turned, np.asfortranarray(queries))
    bodies = [("application/octet-stream", queries.tobytes())]
    bodies += [("application/x-npy", file.getvalue()) for file in (saved, wide, turned)]
    for kind, body in bodies:
        answer = shared.http.post(path, content=body, params=options, headers={"Content-Type": kind})
        assert answer.status_code == 200, answer.text
        assert answer.json() == by_json
    answer = shared.http.post(
        path, content=queries.tobytes(), params=options,
        headers={"Content-Type": "application/octet-stream", "Accept": "application/vnd.apache.arrow.stream"},
    )  # fmt: skip
    columns = pa.ipc.open_stream(answer.content).read_all().to_pydict()
    assert columns["query"] == [at for at in range(7) for _ in range(6)]
    assert columns["rank"] == list(range(1, 7)) * 7
    assert columns["id"] == [name for result in by_json["results"] for name in result["ids"]]
    flat = [score for result in by_json["results"] for score in result["scores"]]
    assert np.array(columns["score"], np.float32).tobytes() == np.array(flat, np.float32).tobytes()
    vectors = [vector for result in by_json["results"] for vector in result["vectors"]]
    assert np.array(columns["vector"], np.float32).tobytes() == np.array(vectors, np.float32).tobytes()


@pytest.mark.parametrize("ids", ["shuffled", "str"])
def test_the_schema_in_arrow_is_that_of_the_table_whatever_is_found(shared: Live, ids: Any) -> None:
    opened = put_version(shared.store, shared.settings, 30, 4, ids)
    first = opened.ids.ids_of(np.arange(1))[0]
    kind = pa.int64() if ids == "shuffled" else pa.string()
    vectors = {"vectors": opened.vectors[:2].tolist()}
    for question, query in (
        ({"ids": [first]}, kind), ({"ids": [str(first), "absent"]}, kind), ({"ids": ["absent"]}, kind),
        ({"ids": [10**30]}, kind), ({"ids": [first], "filter": {"ids": ["absent"]}}, kind), (vectors, pa.int64()),
        (vectors | {"filter": {"ids": ["absent"]}}, pa.int64()),
    ):  # fmt: skip
        for include in (False, True):
            answer = shared.http.post(
                f"/v1/embeddings/{opened.info.version}/neighbors", json=question | {"include_vectors": include},
                headers={"Accept": "application/vnd.apache.arrow.stream"},
            )  # fmt: skip
            assert answer.status_code == 200, answer.text
            fields = [("query", query), ("rank", pa.int32()), ("id", kind), ("score", pa.float32())]
            fields += [("vector", pa.list_(pa.float32(), 4))] if include else []
            assert pa.ipc.open_stream(answer.content).read_all().schema == pa.schema(fields), question


def test_filters(shared: Live, table: Table) -> None:
    labels = np.load(table.directory / "labels.npy")
    for wanted in ([0], [1, 3]):
        names = [f"class {number}" for number in wanted]
        among = np.flatnonzero(np.isin(labels, wanted)).tolist()
        question = {"ids": [IDS[2]], "k": 500, "filter": {"labels": names}}
        check(table, ask(shared, table, question)["results"][0], table.vectors[2], 500, "cosine", among, 2)
    chosen = [IDS[row] for row in (9, 3, 9, 200, 2)]
    found = ask(shared, table, {"ids": [IDS[2]], "k": 3, "filter": {"ids": [*chosen, "absent", 10**25]}})
    assert found["unknown_in_filter"] == ["absent", 10**25]
    check(table, found["results"][0], table.vectors[2], 3, "cosine", {9, 3, 200, 2}, 2)
    nothing = ask(shared, table, {"ids": [IDS[2]], "filter": {"ids": ["absent"]}})
    assert nothing["results"] == [{"query": IDS[2], "ids": [], "scores": []}]
    assert ask(shared, table, {"ids": ["absent"]})["results"] == []
    raw = shared.http.post(
        f"/v1/embeddings/{table.info.version}/neighbors", content=table.vectors[2].tobytes(),
        params={"k": 500, "labels": ["class 1", "class 3"]}, headers={"Content-Type": "application/octet-stream"},
    )  # fmt: skip
    among = np.flatnonzero(np.isin(labels, [1, 3])).tolist()
    check(table, raw.json()["results"][0], table.vectors[2], 500, "cosine", among)


GOOD = [0.5] * DIM
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("neither", {}, "ids"),
    ("both", {"ids": ["1"], "vectors": [GOOD]}, "ids"),
    ("no-ids", {"ids": []}, "ids"),
    ("ids-text", {"ids": "1"}, "ids"),
    ("ids-bool", {"ids": ["1", True]}, "ids.1"),
    ("ids-float", {"ids": [1.0]}, "ids.0"),
    ("ids-null", {"ids": [None]}, "ids.0"),
    ("ids-list", {"ids": [["1"]]}, "ids.0"),
    ("ids-many", {"ids": ["1"] * 1_001}, "ids"),
    ("vectors-many", {"vectors": [GOOD] * 1_001}, "vectors"),
    ("vectors-flat", {"vectors": GOOD}, "vectors.0"),
    ("vectors-short", {"vectors": [GOOD, GOOD[1:]]}, "vectors.1"),
    ("vectors-long", {"vectors": [GOOD, GOOD, GOOD, [*GOOD, 1]]}, "vectors.3"),
    ("vectors-empty", {"vectors": [[]]}, "vectors.0"),
    ("vectors-none", {"vectors": []}, "vectors"),
    ("vectors-text", {"vectors": [[*GOOD[1:], "1"]]}, "vectors.0.15"),
    ("vectors-bool", {"vectors": [GOOD, [*GOOD[1:], True]]}, "vectors.1.15"),
    ("vectors-null", {"vectors": [[*GOOD[1:], None]]}, "vectors.0.15"),
    ("vectors-nested", {"vectors": [[GOOD]]}, "vectors.0.0"),
    ("vectors-beyond-float32", {"vectors": [GOOD, [*GOOD[1:], 1e39]]}, "vectors.1"),
    ("vectors-zero", {"vectors": [GOOD, [0] * DIM]}, "vectors.1"),
    ("zero-node", {"ids": ["absent", IDS[17]]}, "ids.1"),
    ("k-zero", {"ids": ["1"], "k": 0}, "k"),
    ("k-large", {"ids": ["1"], "k": 1_001}, "k"),
    ("k-text", {"ids": ["1"], "k": "5"}, "k"),
    ("k-bool", {"ids": ["1"], "k": True}, "k"),
    ("k-fraction", {"ids": ["1"], "k": 1.5}, "k"),
    ("metric", {"ids": ["1"], "metric": "l2"}, "metric"),
    ("backend", {"ids": ["1"], "backend": "gpu"}, "backend"),
    ("backend-not-built", {"ids": ["1"], "backend": "hnsw"}, "backend"),
    ("include", {"ids": ["1"], "include_vectors": 1}, "include_vectors"),
    ("unknown-key", {"ids": ["1"], "filters": {}}, "filters"),
    ("filter-empty", {"ids": ["1"], "filter": {}}, "filter"),
    ("filter-both", {"ids": ["1"], "filter": {"labels": ["class 0"], "ids": ["1"]}}, "filter"),
    ("filter-label", {"ids": ["1"], "filter": {"labels": ["class 9"]}}, "filter.labels"),
    ("filter-label-number", {"ids": ["1"], "filter": {"labels": [1]}}, "filter.labels.0"),
    ("filter-ids-bool", {"ids": ["1"], "filter": {"ids": ["1", False]}}, "filter.ids.1"),
    ("filter-ids-many", {"ids": ["1"], "filter": {"ids": ["1"] * 10_001}}, "filter.ids"),
]


@pytest.mark.parametrize("question, field", [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_wrong_questions_name_the_field(shared: Live, table: Table, question: dict[str, Any], field: str) -> None:
    answer = shared.http.post(f"/v1/embeddings/{table.info.version}/neighbors", json=question)
    assert field in fields_of(answer)
    assert f"{field}: {field}" not in answer.json()["detail"]
    assert answer.headers["nml-version"] == table.info.version


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(shared: Live, table: Table, number: str) -> None:
    numbers = ",".join(["0.5"] * (DIM - 1) + [number])
    body = f'{{"vectors": [{GOOD}, [{numbers}]]}}'
    answer = shared.http.post(
        f"/v1/embeddings/{table.info.version}/neighbors", content=body, headers={"Content-Type": "application/json"}
    )
    assert fields_of(answer) == ["vectors.1.15"]


def _npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


ONES = np.ones((3, DIM), np.float32)
HOLED = np.array([GOOD, GOOD, [*GOOD[1:], np.nan]], np.float32)
RAW, NPY = "application/octet-stream", "application/x-npy"
BINARY: list[tuple[str, str, bytes, dict[str, Any], str]] = [
    ("raw-empty", RAW, b"", {}, "body"),
    ("raw-ragged", RAW, ONES.tobytes()[:-1], {}, "body"),
    ("raw-wrong-dim", RAW, np.ones((3, DIM - 1), np.float32).tobytes(), {}, "body"),
    ("raw-many", RAW, np.ones((1_001, DIM), np.float32).tobytes(), {}, "vectors"),
    ("raw-nan", RAW, HOLED.tobytes(), {}, "vectors.2"),
    ("raw-zero", RAW, bytes(4 * DIM), {}, "vectors.0"),
    ("npy-nan", NPY, _npy(HOLED), {}, "vectors.2"),
    ("npy-overflow", NPY, _npy(np.full((2, DIM), 1e300)), {}, "vectors.0"),
    ("npy-none", NPY, b"", {}, "body"),
    ("npy-no-magic", NPY, b"PK\x03\x04" * 40, {}, "body"),
    ("npy-cut", NPY, _npy(ONES)[:-4], {}, "body"),
    ("npy-longer", NPY, _npy(ONES) + b"x", {}, "body"),
    ("npy-header-cut", NPY, _npy(ONES)[:50], {}, "body"),
    ("npy-flat", NPY, _npy(ONES[0]), {}, "body"),
    ("npy-3d", NPY, _npy(ONES[None]), {}, "body"),
    ("npy-dim", NPY, _npy(ONES[:, 1:]), {}, "body"),
    ("npy-rows-none", NPY, _npy(ONES[:0]), {}, "vectors"),
    ("npy-many", NPY, _npy(np.ones((1_001, DIM), np.float32)), {}, "vectors"),
    ("npy-int", NPY, _npy(ONES.astype(np.int64)), {}, "body"),
    ("npy-half", NPY, _npy(ONES.astype(np.float16)), {}, "body"),
    ("npy-big-endian", NPY, _npy(ONES.astype(">f4")), {}, "body"),
    ("npy-pickle", NPY, _npy(np.array([[{}]], object), allow_pickle=True), {}, "body"),
    ("npy-huge-header", NPY, b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 100, {}, "body"),
    ("npy-huge-shape", NPY, _npy(ONES).replace(b"(3, 16), }", b"(9" + b"9" * 6 + b",16)}"), {}, "vectors"),
    ("npy-code", NPY, b"\x93NUMPY\x01\x00\x20\x00__import__('os').getpid()       \n", {}, "body"),
    ("npy-rows-true", NPY, _npy(ONES[:1]).replace(b"(1, 16), }   ", b"(True, 16), }"), {}, "body"),
    ("npy-columns-true", NPY, _npy(ONES[:1]).replace(b"(1, 16), }    ", b"(1, False), }"), {}, "body"),
    ("npy-as-raw", RAW, _npy(ONES), {}, "body"),
    ("unknown-option", RAW, ONES.tobytes(), {"K": "3"}, "K"),
    ("k", RAW, ONES.tobytes(), {"k": "0"}, "k"),
    ("metric", RAW, ONES.tobytes(), {"metric": "x"}, "metric"),
    ("label", RAW, ONES.tobytes(), {"labels": "class 9"}, "filter.labels"),
]


@pytest.mark.parametrize("kind, body, options, field", [case[1:] for case in BINARY], ids=[case[0] for case in BINARY])
def test_wrong_binary_bodies(
    shared: Live, table: Table, kind: str, body: bytes, options: dict[str, Any], field: str
) -> None:
    path = f"/v1/embeddings/{table.info.version}/neighbors"
    answer = shared.http.post(path, content=body, params=options, headers={"Content-Type": kind})
    assert field in fields_of(answer)


def test_answers_too_large_are_refused_before_any_work(shared: Live) -> None:
    wide = put_version(shared.store, shared.settings, 1_000, 200).info.version
    question = {"ids": list(range(1_000)), "k": 999, "include_vectors": True}
    assert fields_of(shared.http.post(f"/v1/embeddings/{wide}/neighbors", json=question)) == ["include_vectors"]
    stretched = put_version(shared.store, shared.settings, 2, 4_000).info.version
    asked = {"ids": [0] * 10_000}
    assert fields_of(shared.http.post(f"/v1/embeddings/{stretched}/lookup", json=asked)) == ["ids"]


def test_options_in_both_places_and_other_types(shared: Live, table: Table) -> None:
    path = f"/v1/embeddings/{table.info.version}/neighbors"
    assert fields_of(shared.http.post(path, json={"ids": ["1"]}, params={"k": 3})) == ["k"]
    fields_of(shared.http.post(path, content=b"x", headers={"Content-Type": "text/plain"}), 415)
    gzip = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    fields_of(shared.http.post(path, content=b"x", headers=gzip), 415)
    fields_of(shared.http.post(path, json={"ids": ["1"]}, headers={"Accept": RAW}), 406)
    for text in (b"", b"{", b'{"ids": [01]}', b"[" * 5_000, b'{"ids": ["\\ud800"]}', b"\xff", b'{"ids": ["\n"]}'):
        answer = shared.http.post(path, content=text, headers={"Content-Type": "application/json"})
        assert fields_of(answer, 400) == ["body"], text
    for text in (b"[]", b"null", b"1", b'"x"'):
        answer = shared.http.post(path, content=text, headers={"Content-Type": "application/json"})
        assert fields_of(answer) == ["body"]
