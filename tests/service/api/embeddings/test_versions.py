"""Versions and aliases: which there are, how they move, and who may do what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.api.embeddings.schemas import AliasDocument, AliasPage, EmbeddingDocument, EmbeddingPage
from service.embeddings.table import Table
from service.store.records import new_id
from tests import postgres
from tests.service.api.embeddings.published import fields_of, put_job, put_version
from tests.service.api.server import Live


def key(live: Live, *scopes: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {live.store.keys.create('test', list(scopes))[1]}"}


def test_version_is_shown_listed_and_deleted(live: Live) -> None:
    tables = [put_version(live.store, live.settings, 20, 4, labels=2, dataset=f"papers.{n:012x}") for n in range(3)]
    versions = [table.info.version for table in tables]
    page = EmbeddingPage.model_validate(live.http.get("/v1/embeddings", params={"limit": 2}).json())
    assert [item.version for item in page.items] == versions[:0:-1]
    rest = live.http.get("/v1/embeddings", params={"cursor": page.next}).json()
    assert [item["version"] for item in rest["items"]] == versions[:1]
    assert rest["next"] is None
    assert len(live.http.get("/v1/embeddings", params={"dataset": "papers"}).json()["items"]) == 3
    one = live.http.get("/v1/embeddings", params={"dataset": f"papers.{1:012x}"}).json()["items"]
    assert [item["version"] for item in one] == [versions[1]]
    for ref in (versions[2], "latest", "latest.papers"):
        answer = live.http.get(f"/v1/embeddings/{ref}")
        shown = EmbeddingDocument.model_validate(answer.json())
        assert (shown.version, shown.state, shown.rows, shown.dim) == (versions[2], "ready", 20, 4)
        assert shown.aliases == ["latest", "latest.papers"]
        assert shown.classes == ["class 0", "class 1"]
        assert answer.headers["nml-version"] == versions[2]
    links = shown.links.model_dump()
    assert live.http.get(links["nodes"] + "/3").status_code == 200
    for link in links["download"].values():
        assert live.http.get(link).status_code == 200
    assert live.http.get(links["job"]).json()["id"] == versions[2]
    assert live.http.delete("/v1/embeddings/latest").status_code == 404
    assert live.http.delete(f"/v1/embeddings/{versions[2]}").status_code == 204
    assert not live.settings.version_directory(versions[2]).exists()
    for path in ("", "/nodes/3", "/download"):
        assert live.http.get(f"/v1/embeddings/{versions[2]}{path}").status_code == 404
    assert live.http.post(f"/v1/embeddings/{versions[2]}/lookup", json={"ids": [3]}).status_code == 404
    assert live.http.get("/v1/embeddings/latest/nodes/3").headers["nml-version"] == versions[1]


def test_version_that_is_not_ready(live: Live) -> None:
    version = new_id()
    put_job(live.store, version)
    for method, path in (("GET", "/nodes/1"), ("POST", "/lookup"), ("POST", "/neighbors"), ("GET", "/download")):
        answer = live.http.request(method, f"/v1/embeddings/{version}{path}", json={"ids": [1]})
        assert (answer.status_code, answer.headers["retry-after"]) == (409, "2")
    shown = live.http.get(f"/v1/embeddings/{version}").json()
    assert (shown["state"], shown["links"]["nodes"]) == ("publishing", None)
    assert live.http.delete(f"/v1/embeddings/{version}").status_code == 409
    live.store.embeddings.finish(version, shown["job"], failure="vectors.npy: checksum differs")
    answer = live.http.get(f"/v1/embeddings/{version}/nodes/1")
    assert answer.status_code == 409
    assert "checksum differs" in answer.json()["detail"]
    assert live.http.get(f"/v1/embeddings/{version}").json()["failure"] == "vectors.npy: checksum differs"
    again = live.http.post("/v1/embeddings", json={"job": version})
    assert (again.status_code, again.json()["state"]) == (202, "publishing")
    assert again.headers["location"] == f"/v1/embeddings/{version}"
    assert live.http.post("/v1/embeddings", json={"job": version}).json()["job"] == again.json()["job"]


def test_what_cannot_be_published(live: Live) -> None:
    job = live.submit()
    assert live.http.post("/v1/embeddings", json={"job": job["id"]}).status_code == 409
    assert live.http.post("/v1/embeddings", json={"job": "absent"}).status_code == 404
    for body, field in (({}, "job"), ({"job": 1}, "job"), ({"job": "a/b"}, "job"), ({"job": "a", "x": 1}, "x")):
        assert fields_of(live.http.post("/v1/embeddings", json=body)) == [field]


def test_cancelled_publishing_has_failed(live: Live) -> None:
    version = new_id()
    put_job(live.store, version)
    made = live.store.embeddings.get(version)
    assert made is not None
    live.store.jobs.cancel(made.job_id)
    assert live.http.get(f"/v1/embeddings/{version}").json()["state"] == "failed"


def test_publishing_and_indexing_are_cancelled_by_their_owner(serve: Callable[..., Live]) -> None:
    live = serve(require_key=True)
    made, text = live.store.keys.create("one", ["submit", "read"])
    one, other = {"Authorization": f"Bearer {text}"}, key(live, "submit", "read")
    version = new_id()
    put_job(live.store, version, owner=made.id)
    job = live.http.get(f"/v1/embeddings/{version}", headers=one).json()["job"]
    assert live.http.get(f"/v1/jobs/{job}", headers=one).json()["links"]["cancel"] == f"/v1/jobs/{job}/cancel"
    assert live.http.post(f"/v1/jobs/{job}/cancel", headers=other).status_code == 403
    unfinished = live.http.delete(f"/v1/jobs/{job}", headers=one)
    assert unfinished.status_code == 409
    assert "cancel it first" in unfinished.json()["detail"]
    assert live.http.post(f"/v1/jobs/{job}/cancel", headers=one).json()["state"] == "cancelled"
    refused = live.http.get(f"/v1/embeddings/{version}/nodes/1", headers=one)
    assert "cancelled" in refused.json()["detail"]  # at once, and no longer "still being published"
    assert live.http.delete(f"/v1/jobs/{job}", headers=one).status_code == 204
    indexed = put_version(live.store, live.settings, 20, 4).info.version
    admin = key(live, "admin")
    job = live.http.post(f"/v1/embeddings/{indexed}/index", json={}, headers=admin).json()["indexes"]["hnsw"]["job"]
    assert live.http.post(f"/v1/jobs/{job}/cancel", headers=admin).status_code == 202
    row = live.store.embeddings.get(indexed)
    assert row is not None
    assert row.indexes["hnsw"]["state"] == "failed"


def test_index_is_queued_once(live: Live) -> None:
    version = put_version(live.store, live.settings, 20, 4).info.version
    first = live.http.post(f"/v1/embeddings/{version}/index", json={"kind": "ivf"})
    assert first.status_code == 202
    assert first.json()["indexes"]["ivf"]["state"] == "building"
    again = live.http.post(f"/v1/embeddings/{version}/index", json={"kind": "ivf"}).json()
    assert again["indexes"] == first.json()["indexes"]
    assert live.http.get(f"/v1/jobs/{again['indexes']['ivf']['job']}").json()["kind"] == "index"
    assert fields_of(live.http.post(f"/v1/embeddings/{version}/index", json={"kind": "flat"})) == ["kind"]
    assert live.http.delete(f"/v1/embeddings/{version}").status_code == 409


def test_alias_moves_and_goes_back(live: Live) -> None:
    versions = [put_version(live.store, live.settings, 5, 4).info.version for _ in range(3)]

    def put(status: int = 200, **body: Any) -> Any:
        answer = live.http.put("/v1/aliases/production", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    assert put(404, rollback=True)["status"] == 404
    for version in versions:
        shown = AliasDocument.model_validate(put(version=version))
        assert shown.version == version
        assert live.http.get("/v1/embeddings/production/nodes/1").headers["nml-version"] == version
    assert [move["version"] for move in put(version=versions[2])["history"]] == versions[::-1]
    put(409, version=versions[0], expected=versions[1])
    put(409, version=versions[0], expected="")
    assert put(version=versions[0], expected=versions[2])["seq"] == 4
    assert put(rollback=True)["version"] == versions[2]
    assert put(rollback=True)["version"] == versions[1]
    assert live.http.get("/v1/embeddings/production/nodes/1").headers["nml-version"] == versions[1]
    assert live.http.delete(f"/v1/embeddings/{versions[1]}").status_code == 409
    put(404, version=new_id())
    listed = AliasPage.model_validate(live.http.get("/v1/aliases").json())
    assert [(alias.name, alias.automatic) for alias in listed.items] == [
        ("latest", True), ("latest.synthetic", True), ("production", False),
    ]  # fmt: skip
    first = live.http.get("/v1/aliases", params={"limit": 1}).json()
    assert live.http.get("/v1/aliases", params={"cursor": first["next"]}).json()["items"][0]["name"] != "latest"
    assert live.http.get("/v1/aliases/production").json()["history"][0]["reason"] == "rollback"
    assert live.http.delete("/v1/aliases/production").status_code == 204
    assert live.http.get("/v1/embeddings/production/nodes/1").status_code == 404
    assert live.http.get("/v1/aliases/production").status_code == 404
    assert live.http.delete("/v1/aliases/production").status_code == 404


def test_wrong_aliases(live: Live) -> None:
    version = put_version(live.store, live.settings, 5, 4).info.version
    for name in ("A", "-a", "a b", "é", "a" * 65, new_id(), "%2e", "a%0a"):
        answer = live.http.put(f"/v1/aliases/{name}", json={"version": version})
        assert fields_of(answer) == ["alias"], name
    for name in ("latest", "latest.synthetic", "latest.other"):
        assert live.http.put(f"/v1/aliases/{name}", json={"version": version}).status_code == 409
        assert live.http.delete(f"/v1/aliases/{name}").status_code in (404, 409)
    for body, field in (
        ({}, "version"), ({"version": version, "rollback": True}, "version"), ({"version": 1}, "version"),
        ({"rollback": False}, "rollback"), ({"version": version, "expected": 1}, "expected"), ({"x": 1}, "x"),
    ):  # fmt: skip
        assert field in fields_of(live.http.put("/v1/aliases/a", json=body))


def test_scopes_and_owners(serve: Callable[..., Live]) -> None:
    live = serve(require_key=True)
    version = put_version(live.store, live.settings, 5, 4).info.version
    path, reader = f"/v1/embeddings/{version}", key(live, "read")
    for what, body, status in (
        ("lookup", {"ids": [1]}, 200), ("neighbors", {"ids": [1]}, 200), ("embed", {}, 409), ("classify", {}, 422),
    ):  # fmt: skip
        assert live.http.post(f"{path}/{what}", json=body, headers=reader).status_code == status
        assert live.http.post(f"{path}/{what}", json=body).status_code == 401
        for method in ("PUT", "DELETE", "PATCH"):
            assert live.http.request(method, f"{path}/{what}", headers=reader).status_code == 403
    assert live.http.post(f"{path}/nodes/lookup", headers=reader).status_code == 403
    assert live.http.put("/v1/aliases/mine", json={"version": version}, headers=reader).status_code == 403
    assert live.http.post("/v1/embeddings", json={"job": version}, headers=reader).status_code == 403
    assert live.http.post(f"{path}/index", json={}, headers=reader).status_code == 403
    assert live.http.delete(path, headers=reader).status_code == 403
    one, other, admin = key(live, "submit"), key(live, "submit"), key(live, "admin")
    assert live.http.put("/v1/aliases/mine", json={"version": version}, headers=one).status_code == 200
    assert live.http.put("/v1/aliases/mine", json={"version": version}, headers=other).status_code == 403
    assert live.http.delete("/v1/aliases/mine", headers=other).status_code == 403
    for method, place in (("DELETE", path), ("POST", f"{path}/index")):
        assert live.http.request(method, place, json={}, headers=one).status_code == 403
    assert live.http.delete("/v1/aliases/mine", headers=admin).status_code == 204
    assert live.http.delete(path, headers=admin).status_code == 204


def test_bodies_of_questions_may_be_large_and_others_not(serve: Callable[..., Live]) -> None:
    live = serve(max_query_bytes=3_000_000, max_body_bytes=1_000_000)
    version = put_version(live.store, live.settings, 5, 4).info.version
    asked = {"ids": [1], "x": "y" * 2_000_000}
    assert fields_of(live.http.post(f"/v1/embeddings/{version}/neighbors", json=asked)) == ["x"]
    assert live.http.post(f"/v1/embeddings/{version}/neighbors", json={"x": "y" * 3_000_000}).status_code == 413
    assert live.http.post(f"/v1/embeddings/{version}/index", json=asked).status_code == 413


def test_alias_that_two_set_at_once_is_that_of_one(serve: Callable[..., Live]) -> None:
    live = serve(require_key=True, rate_burst=10**6)
    versions = [put_version(live.store, live.settings, 5, 4).info.version for _ in range(2)]
    keys = [key(live, "submit", "read") for _ in range(2)]
    for number in range(20):
        together, statuses = threading.Barrier(2), []

        def put(at: int, name: str = f"name{number}", together: Any = together, statuses: Any = statuses) -> None:
            together.wait()
            body = {"version": versions[at]}
            statuses.append(live.http.put(f"/v1/aliases/{name}", json=body, headers=keys[at]).status_code)

        threads = [threading.Thread(target=put, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200, 403]


def test_version_deleted_while_it_is_opened_is_still_answered_from(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked before the deletion gets the vector; whoever asks after it, 404."""
    version = put_version(live.store, live.settings, 5, 4).info.version
    genuine = Table.open

    def opened(directory: Any) -> Table:
        table = genuine(directory)
        assert live.http.delete(f"/v1/embeddings/{version}").status_code == 204
        return table

    monkeypatch.setattr("service.api.embeddings.catalog.Table.open", opened)
    answer = live.http.get(f"/v1/embeddings/{version}/nodes/1")
    assert (answer.status_code, answer.headers["nml-version"]) == (200, version)
    assert live.http.get(f"/v1/embeddings/{version}/nodes/1").status_code == 404


def test_files_that_are_gone_are_no_bad_request(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    version = put_version(live.store, live.settings, 5, 4).info.version
    live.settings.version_directory(version).rename(live.settings.home / "elsewhere")
    answer = live.http.get(f"/v1/embeddings/{version}/nodes/1")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert version in caplog.text
    (live.settings.home / "elsewhere").rename(live.settings.version_directory(version))
    assert live.http.get(f"/v1/embeddings/{version}/nodes/1").status_code == 200


def test_no_answer_mixes_versions_while_an_alias_moves(serve: Callable[..., Live]) -> None:
    """Vectors carry their version's number in every place, so that one of another version would show."""
    live = serve(rate_burst=10**6)
    count = 100  # beyond what is gathered in the loop
    versions = []
    for number in (1, 2):
        vectors = np.full((count, 8), number, np.float32)
        versions.append(put_version(live.store, live.settings, vectors=vectors).info.version)
    numbers = {versions[0]: 1.0, versions[1]: 2.0}
    live.store.aliases.move("moving", versions[0], owner=None)
    stop, wrong, seen = threading.Event(), [], set()

    def look() -> None:
        asked = {"ids": list(range(count))}
        while not stop.is_set():
            for form in ("application/json", "application/octet-stream"):
                answer = live.http.post("/v1/embeddings/moving/lookup", json=asked, headers={"Accept": form})
                number = numbers[answer.headers["nml-version"]]
                is_json = form == "application/json"
                found = np.array(answer.json()["vectors"]) if is_json else np.frombuffer(answer.content, "<f4")
                seen.add(number)
                if found.size != count * 8 or not (found == number).all():
                    wrong.append(answer.headers["nml-version"])
            near = live.http.post("/v1/embeddings/moving/neighbors", json={"ids": [0], "include_vectors": True})
            found = np.array(near.json()["results"][0]["vectors"])
            if not (found == numbers[near.headers["nml-version"]]).all() or near.json()["version"] not in numbers:
                wrong.append(near.text)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for move in range(60):
        wanted = versions[(move + 1) % 2]
        assert live.http.put("/v1/aliases/moving", json={"version": wanted}).status_code == 200
        # whoever asks after the answer sees the move
        assert live.http.get("/v1/embeddings/moving/nodes/0").headers["nml-version"] == wanted
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert seen == {1.0, 2.0}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_new_versions_and_moves_appear_in_every_process(serve: Callable[..., Live], database: str) -> None:
    if database == "postgresql" and postgres.MISSING:
        pytest.skip(postgres.MISSING_REASON)
    if database == "postgresql":
        with postgres.running() as server:
            _appear(serve(database_url=server.new_database("a")), serve(database_url=server.url("a")))
    else:
        _appear(serve(), serve())


def _appear(one: Live, other: Live) -> None:
    assert one.app is not other.app
    assert other.http.get("/v1/embeddings/latest/nodes/1").status_code == 404
    for _ in range(3):
        version = put_version(one.store, one.settings, 5, 4).info.version
        assert other.http.get(f"/v1/embeddings/{version}/nodes/1").status_code == 200
        assert one.http.put("/v1/aliases/production", json={"version": version}).status_code == 200
        assert one.http.get("/v1/embeddings/production/nodes/1").headers["nml-version"] == version
        for live in (one, other):
            for ref in ("production", "latest"):
                for _ in range(6_000):  # where it is looked for now and then, a moment later
                    found = live.http.get(f"/v1/embeddings/{ref}/nodes/1").headers["nml-version"]
                    if found == version:
                        break
                    assert not live.store.reads_inline
                    threading.Event().wait(0.02)
                assert found == version
    one.http.delete("/v1/aliases/production")
    assert one.http.delete(f"/v1/embeddings/{version}").status_code == 204
    for _ in range(6_000):
        status = other.http.get(f"/v1/embeddings/{version}/nodes/1").status_code
        if status == 404:
            break
        assert not other.store.reads_inline
        threading.Event().wait(0.02)
    assert status == 404


def test_many_tables_are_closed_again(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.embeddings.catalog.MOST_OPEN", 2)
    versions = [put_version(live.store, live.settings, 5, 4).info.version for _ in range(4)]
    for version in (*versions, *versions):
        assert live.http.get(f"/v1/embeddings/{version}/nodes/1").headers["nml-version"] == version
    catalog = live.state.catalog
    assert len(catalog._served) == 2
    assert set(catalog._found) <= set(versions[2:])
