"""Data sets belong to the key that uploaded them: what it may store, and who may delete."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from service.datasets import receive
from service.datasets.in_progress import MAX_PER_KEY, UploadInProgress
from service.settings import Settings
from tests.service.api.server import Live, serving
from tests.service.datasets.forms import CONTENT_TYPE, EDGES, NODES, archive, field, form, graph, npz
from tests.service.datasets.importers import importing

QUOTA = 20_000
FILES = {"nodes": ("n.csv", NODES), "edges": ("e.csv", EDGES)}


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("home")
    settings = Settings(
        home=home, memory_limit="4GB", min_free_bytes=0, require_key=True, upload_quota_bytes=QUOTA,
        max_upload_bytes=1_000_000,
    )  # fmt: skip
    with serving(settings) as server, importing(server.store, settings):
        yield server


def client(live: Live, *scopes: str) -> httpx.Client:
    _, secret = live.store.keys.create("test", frozenset(scopes))
    return httpx.Client(base_url=live.url, headers={"Authorization": f"Bearer {secret}"}, timeout=60)


def test_a_key_stores_no_more_than_its_share(live: Live):
    mine, other = client(live, "submit"), client(live, "submit")
    content = npz(**graph())
    files = {"npz": ("g.npz", content)}
    answers, used = [], 0
    while used + len(content) <= QUOTA:  # what is stored counts as it lies on disk, what arrives as it was sent
        answers.append(mine.post("/v1/datasets", data={"name": f"share-{len(answers)}"}, files=files))
        assert answers[-1].status_code == 201, answers[-1].text
        stored = answers[-1].json()
        used += stored["bytes"]
        assert stored["bytes"] == sum(path.stat().st_size for path in (live.settings.graphs / stored["ref"]).iterdir())
    assert len(answers) > 1
    refused = mine.post("/v1/datasets", data={"name": "share-last"}, files=files)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "body")
    assert other.post("/v1/datasets", data={"name": "share-other"}, files=files).status_code == 201
    ref = answers[0].json()["ref"]
    assert mine.delete(f"/v1/datasets/{ref}").status_code == 204
    again = mine.post("/v1/datasets", data={"name": "share-again"}, files=files)
    assert again.status_code == 201  # there is room again


def test_more_than_an_upload_may_have_is_refused(live: Live):
    key = client(live, "admin")
    body = form([field("name", "large"), archive(bytes(1_000_001))])
    pieces = (body[at : at + 50_000] for at in range(0, len(body), 50_000))  # its length is not announced
    answer = key.post("/v1/datasets", content=pieces, headers={"Content-Type": CONTENT_TYPE})
    assert answer.status_code in (403, 413)  # the share of a key is smaller here
    announced = key.post("/v1/datasets", content=bytes(3_000_000), headers={"Content-Type": CONTENT_TYPE})
    assert announced.status_code == 413
    assert not list(live.settings.uploads.iterdir())


def test_only_its_key_or_an_admin_deletes_a_data_set(live: Live):
    mine, other, reader, admin = (client(live, scope) for scope in ("submit", "submit", "read", "admin"))
    made = mine.post("/v1/datasets", data={"name": "owned"}, files=FILES)
    ref = made.json()["ref"]
    assert made.json()["owner"] == live.store.datasets.get(ref).owner is not None
    assert reader.get(f"/v1/datasets/{ref}").status_code == 200
    assert reader.delete(f"/v1/datasets/{ref}").status_code == 403
    assert reader.post("/v1/datasets", data={"name": "read"}, files=FILES).status_code == 403
    assert other.delete(f"/v1/datasets/{ref}").status_code == 403
    assert other.post("/v1/datasets", data={"name": "owned"}, files=FILES).json() == made.json()  # but may use it
    assert admin.delete(f"/v1/datasets/{ref}").status_code == 204
    made = mine.post("/v1/datasets", data={"name": "owned"}, files=FILES)
    live.store.datasets.delete(ref)  # files that lost their row are nobody's
    assert (made.status_code, mine.delete(f"/v1/datasets/{ref}").status_code) == (201, 403)
    assert admin.delete(f"/v1/datasets/{ref}").status_code == 204


def test_only_its_key_or_an_admin_adds_a_version_to_a_name(live: Live):
    mine, other, admin = (client(live, scope) for scope in ("submit", "submit", "admin"))
    turned = FILES | {"edges": ("e.csv", EDGES + "s,p\n")}
    more = FILES | {"edges": ("e.csv", EDGES + "s,q\n")}
    first = mine.post("/v1/datasets", data={"name": "named"}, files=FILES).json()
    refused = other.post("/v1/datasets", data={"name": "named"}, files=turned)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "name")
    assert mine.get("/v1/datasets/named").json()["ref"] == first["ref"]
    assert admin.post("/v1/datasets", data={"name": "named"}, files=turned).status_code == 201
    assert mine.post("/v1/datasets", data={"name": "named"}, files=more).status_code == 201
    assert other.post("/v1/datasets", data={"name": "named-too"}, files=turned).status_code == 201


def test_uploads_under_way_count(live: Live, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(receive, "PIECE_BYTES", 1)  # count everything as soon as it comes
    mine, other = client(live, "submit"), client(live, "submit")
    small = {"npz": ("g.npz", npz(**graph()))}
    underway = live.state.uploads._by_owner
    before = set(underway)

    def in_progress() -> list[UploadInProgress]:
        return next((together for owner, together in underway.items() if owner not in before), [])

    with ExitStack() as stack:
        for turn in range(3):
            stack.enter_context(begun(live, mine, f"slow-{turn}", 6_500))
        until(lambda: sum(one.bytes for one in in_progress()) == 19_500)
        assert len(small["npz"][1]) > QUOTA - 19_500
        answer = mine.post("/v1/datasets", data={"name": "fourth"}, files=small)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (403, "body")
        assert other.post("/v1/datasets", data={"name": "fourth"}, files=small).status_code == 201
        stack.enter_context(begun(live, mine, "slow-3", 1))
        until(lambda: len(in_progress()) == MAX_PER_KEY)
        answer = mine.post("/v1/datasets", data={"name": "fifth"}, files=small)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
    until(lambda: not in_progress())
    assert mine.post("/v1/datasets", data={"name": "fifth"}, files=small).status_code == 201


@contextmanager
def begun(live: Live, key: httpx.Client, name: str, size: int) -> Iterator[None]:
    """An upload of which only so many bytes of the file come; its connection is cut at the end."""
    whole = form([field("name", name), archive(bytes(size))])
    head = (
        f"POST /v1/datasets HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Authorization: {key.headers['Authorization']}\r\nContent-Length: {len(whole) + 1_000}\r\n\r\n"
    )
    port = live.http.base_url.port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(head.encode() + whole[: whole.rindex(b"\0") + 1])
        yield


def until(condition: Callable[[], bool]) -> None:
    while not condition():  # the test's time limit ends this
        time.sleep(0.01)


def test_without_a_key_there_is_nothing(live: Live):
    for method, path in (("GET", ""), ("POST", ""), ("GET", "/digits"), ("DELETE", "/digits")):
        assert live.http.request(method, f"/v1/datasets{path}").status_code == 401


def test_a_disk_that_is_almost_full_takes_no_uploads(tmp_path):
    settings = Settings(home=tmp_path, memory_limit="4GB", min_free_bytes=10**18)
    with serving(settings) as live:
        answer = live.http.post("/v1/datasets", data={"name": "full"}, files=FILES)
        assert (answer.status_code, answer.json()["title"]) == (507, "Insufficient Storage")
        assert not settings.uploads.exists()


def test_a_body_that_was_packed_is_refused(live: Live):
    headers = {"Content-Type": CONTENT_TYPE, "Content-Encoding": "gzip"}
    answer = client(live, "submit").post("/v1/datasets", content=form([field("name", "a")]), headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (415, "body")


def test_the_form_is_described(live: Live):
    operation = client(live, "read").get("/openapi.json").json()["paths"]["/v1/datasets"]["post"]
    described = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(described["properties"]) == {"name", "options", "npz", "nodes", "edges"}
    assert described["properties"]["options"]["additionalProperties"] is False
    statuses = {200, 201, 202, 400, 401, 403, 408, 409, 413, 415, 422, 429, 503, 507}
    assert {str(status) for status in statuses} <= set(operation["responses"])
