"""Data sets belong to the key that uploaded them: what it may store, and who may delete."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from service.settings import Settings
from tests.service.api.server import Live, serving
from tests.service.datasets.forms import CONTENT_TYPE, EDGES, NODES, archive, field, form, graph, npz
from tests.service.datasets.importers import importing

QUOTA = 3_000
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
    assert len(content) < QUOTA < 5 * len(content)
    answers = [mine.post("/v1/datasets", data={"name": f"share-{turn}"}, files=files) for turn in range(6)]
    fits = QUOTA // len(content)
    assert [answer.status_code for answer in answers] == [201] * fits + [403] * (6 - fits)
    assert answers[-1].json()["errors"][0]["field"] == "body"
    assert other.post("/v1/datasets", data={"name": "share-other"}, files=files).status_code == 201
    ref = answers[0].json()["ref"]
    assert mine.delete(f"/v1/datasets/{ref}").status_code == 204
    again = mine.post("/v1/datasets", data={"name": "share-9"}, files=files)
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
