"""/v1/datasets over HTTP, with a real server, a real database and real import processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import TypeAdapter

from service.api.dataset_schemas import DatasetDocument, DatasetPage
from service.datasets.imports import conclude_import
from service.settings import Settings
from service.store.records import Claim
from tests.service.api.server import Live, serving
from tests.service.datasets.forms import CONTENT_TYPE, EDGES, NODES, Part, archive, field, form, graph, npz, parquet
from tests.service.datasets.importers import import_next, importing, start_process
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.spec.data import DataSpec, FilesSpec

DOCUMENT, PAGE = TypeAdapter(DatasetDocument), TypeAdapter(DatasetPage)
FILES = {"nodes": ("n.csv", NODES), "edges": ("e.csv", EDGES)}


def push(live: Live, name: str, files: Any = FILES, options: dict[str, Any] | None = None) -> httpx.Response:
    fields = {"name": name} | ({} if options is None else {"options": json.dumps(options)})
    answer = live.http.post("/v1/datasets", data=fields, files=files, timeout=60)
    if answer.is_success:
        DOCUMENT.validate_json(answer.content, strict=True)
    return answer


def submit(live: Live, dataset: str) -> dict[str, Any]:
    return live.submit({"data": {"name": "imported", "imported": dataset}, "optimiser": {"epochs": 1}})


def end(live: Live, job_id: str) -> None:
    job = live.claim(job_id)
    live.store.claims.finish(Claim.on(job), "succeeded")


def test_an_npz_is_imported_by_its_own_process_and_described(live: Live, tmp_path):
    content = npz(**graph(y=np.array([0, 1, 1, 0]), ids=np.array(["a", "b", "c", "d"])))
    answer = push(live, "npz-one", {"npz": ("anything.bin", content)}, {"directed": True})
    document = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/datasets/{document['ref']}"
    counts = {"nodes": 4, "edges": 3, "features": 2, "classes": 2}
    assert {key: document[key] for key in counts} == counts
    assert (document["state"], document["kind"]) == ("ready", "uploaded")
    on_disk = (live.settings.graphs / document["ref"]).iterdir()
    assert document["bytes"] == sum(path.stat().st_size for path in on_disk)
    assert document["degree"] | {"quantiles": 0} == {
        "min": 0, "median": 1, "mean": 0.75, "max": 1, "isolated": 0, "quantiles": 0
    }  # fmt: skip
    (tmp_path / "g.npz").write_bytes(content)
    files = FilesSpec(npz=str(tmp_path / "g.npz"), directed=True)
    stored = load(DataSpec(name="imported", imported=document["ref"]), home=live.settings.home)
    assert stored.fingerprint() == load(DataSpec(name="files", files=files)).fingerprint() == document["fingerprint"]
    assert live.http.get(answer.headers["location"]).json() == document
    assert live.http.get("/v1/datasets/npz-one").json() == document


def test_the_version_follows_from_content_and_options_alone(live: Live):
    first = push(live, "versions").json()
    options = {key: field.default for key, field in FilesSpec.model_fields.items() if field.default is not None}
    parts = {key: ["csv", hashlib.sha256(text.encode()).hexdigest()] for key, (_, text) in FILES.items()}
    text = json.dumps({"options": options, "parts": parts}, sort_keys=True, separators=(",", ":"))
    assert first["ref"] == f"versions.{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    renamed = {"edges": ("other.CSV", EDGES), "nodes": ("../x.csv", NODES)}
    again = push(live, "versions", renamed, {"directed": False})  # the same: other file names, order, a default said
    assert (again.status_code, again.json()) == (200, first)
    directed = push(live, "versions", options={"directed": True})
    other = push(live, "other-name")
    assert (directed.status_code, other.status_code) == (201, 201)
    assert directed.json()["ref"] != first["ref"]
    assert other.json()["ref"].split(".")[1] == first["ref"].split(".")[1]

    newest = live.http.get("/v1/datasets/versions").json()
    assert newest["ref"] == directed.json()["ref"]
    assert [one["ref"] for one in newest["versions"]] == [directed.json()["ref"], first["ref"]]
    assert live.http.get(f"/v1/datasets/{first['ref']}").json()["edges"] == 6


@pytest.mark.parametrize(
    "nodes, edges",
    [
        (Part("nodes", parquet(id=list("pqrs"), a=[1, 2, 3, 4]), "n.PARQUET"), Part("edges", EDGES.encode(), "e.csv")),
        (
            Part("nodes", NODES.encode(), None, "text/csv; charset=utf-8"),
            Part("edges", EDGES.encode(), "e", "text/csv"),
        ),
        (
            Part("nodes", parquet(id=list("pqrs"), a=[1, 2, 3, 4]), None, "application/vnd.apache.parquet"),
            Part("edges", parquet(source=["p"], target=["s"]), "blob", "application/vnd.apache.parquet"),
        ),
        (Part("nodes", b"\xef\xbb\xbf" + NODES.encode(), "n.csv"), Part("edges", EDGES.encode(), "e.csv")),
    ],
)
def test_tables_are_known_by_file_name_or_content_type(live: Live, nodes, edges):
    body = form([edges, nodes, field("options", {}), field("name", "kinds")]) + b"an epilogue, which nobody reads"
    answer = live.http.post("/v1/datasets", content=body, headers={"Content-Type": CONTENT_TYPE})
    assert answer.status_code in (200, 201), answer.text
    assert answer.json()["nodes"] == 4


def test_a_body_may_come_in_any_pieces_and_without_its_length(live: Live):
    body = form([field("name", "pieces"), archive(npz(**graph()))])
    refs = set()
    for size in (1_000, 37, 3):
        pieces = (body[at : at + size] for at in range(0, len(body), size))
        answer = live.http.post("/v1/datasets", content=pieces, headers={"Content-Type": CONTENT_TYPE})
        assert answer.status_code in (200, 201), answer.text
        refs.add(answer.json()["ref"])
    assert len(refs) == 1


def test_the_same_upload_at_the_same_moment_is_imported_once(live: Live):
    body = form([field("name", "race"), *(Part(key, text.encode(), f"{key}.csv") for key, (_, text) in FILES.items())])
    before = len(live.store.jobs.list(kind="import", limit=500)[0])

    async def both() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
            headers = {"Content-Type": CONTENT_TYPE}
            return await asyncio.gather(*(http.post("/v1/datasets", content=body, headers=headers) for _ in range(6)))

    answers = asyncio.run(both())
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert len({answer.text for answer in answers}) == 1
    assert len(live.store.jobs.list(kind="import", limit=500)[0]) == before + 1


def test_a_refused_upload_can_be_corrected_and_sent_again(live: Live):
    wrong = {"nodes": ("n.csv", NODES), "edges": ("e.csv", EDGES + "p,nobody\n")}
    refused = push(live, "corrected", wrong)
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith('edges.csv, row 5: node "nobody" is not in nodes.csv.')
    shown = live.http.get("/v1/datasets/corrected").json()
    assert (shown["state"], shown["nodes"]) == ("failed", None)
    assert shown["failure"] == refused.json()["errors"][0]["message"]
    assert push(live, "corrected", wrong).status_code == 422  # checked anew
    right = push(live, "corrected", wrong, {"drop_unknown": True})
    assert right.status_code == 201
    assert right.json()["notes"] == ["dropped 1 edge to nodes that are not in nodes.csv"]
    assert live.http.get("/v1/datasets/corrected").json()["ref"] == right.json()["ref"]  # not the newest, which failed


def test_what_takes_long_is_accepted_and_ready_later(tmp_path):
    settings = Settings(home=tmp_path, memory_limit="4GB", min_free_bytes=0, upload_wait_seconds=0.2)
    with serving(settings) as live:
        answer = push(live, "late")
        document = answer.json()
        assert (answer.status_code, document["state"]) == (202, "checking")
        assert push(live, "late").status_code == 202
        ref = document["ref"]
        refused = live.http.post("/v1/jobs", json={"data": {"name": "imported", "imported": "late"}})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "data.imported")
        assert "still being checked" in refused.json()["detail"]
        assert import_next(live.store, settings, start_process) == (0, None, None)  # as a dispatcher starts it
        assert live.http.get(answer.headers["location"]).json()["state"] == "ready"
        assert push(live, "late").status_code == 200
        assert submit(live, "late")["dataset"] == ref
        assert not list(settings.uploads.iterdir())


def test_deleting_what_is_being_checked_cancels_the_check(tmp_path):
    settings = Settings(home=tmp_path, memory_limit="4GB", min_free_bytes=0, upload_wait_seconds=0.0)
    with serving(settings) as live:
        waiting = push(live, "waiting").json()
        assert live.http.delete(f"/v1/datasets/{waiting['ref']}").status_code == 204
        assert live.http.get(f"/v1/datasets/{waiting['ref']}").status_code == 404
        assert not list(settings.uploads.iterdir())
        running = push(live, "running").json()
        job = live.store.claims.claim("test", kinds=("import",), lease_seconds=60)
        assert job is not None
        assert live.http.delete(f"/v1/datasets/{running['ref']}").status_code == 409
        cancelled = live.store.jobs.get(job.id)
        assert cancelled is not None
        assert cancelled.state == "cancelling"
        conclude_import(job, live.store, settings, failure="cancelled on request")
        live.store.claims.finish(Claim.on(job), "cancelled")
        assert live.http.delete(f"/v1/datasets/{running['ref']}").status_code == 204
        assert not list(settings.uploads.iterdir())


def test_without_a_dispatcher_nobody_waits(tmp_path):
    settings = Settings(home=tmp_path, memory_limit="4GB", min_free_bytes=0, upload_wait_seconds=600)
    with serving(settings) as live:
        assert push(live, "alone").status_code == 202  # the test's time limit is below those 600 s


def test_a_check_that_was_cancelled_does_not_stay_open(tmp_path):
    settings = Settings(home=tmp_path, memory_limit="4GB", min_free_bytes=0, upload_wait_seconds=0)
    with serving(settings) as live:
        document = push(live, "cancelled").json()
        live.store.jobs.cancel(document["job"])
        shown = live.http.get("/v1/datasets/cancelled").json()
        assert (shown["state"], shown["failure"]) == ("failed", "its check was cancelled; upload it again")
        again = push(live, "cancelled")
        assert (again.status_code, again.json()["job"] != document["job"]) == (202, True)
        with importing(live.store, settings):
            while live.http.get("/v1/datasets/cancelled").json()["state"] == "checking":
                pass
        assert live.http.get("/v1/datasets/cancelled").json()["state"] == "ready"


def test_a_job_names_the_version_that_a_bare_name_meant(live: Live):
    first = push(live, "meant").json()["ref"]
    job = submit(live, "meant")
    assert (job["dataset"], job["spec"]["data"]["imported"]) == (first, first)
    second = push(live, "meant", options={"directed": True}).json()["ref"]
    later = submit(live, "meant")
    assert later["dataset"] == second != first
    refused = live.http.delete(f"/v1/datasets/{first}")
    assert (refused.status_code, "unfinished job" in refused.json()["detail"]) == (409, True)
    end(live, job["id"])
    assert live.http.delete(f"/v1/datasets/{first}").status_code == 204
    assert not (live.settings.graphs / first).exists()
    assert (live.settings.graphs / second).exists()
    assert live.http.get(f"/v1/datasets/{first}").status_code == 404
    assert live.http.delete(f"/v1/datasets/{first}").status_code == 404
    end(live, later["id"])
    assert push(live, "meant").status_code == 201  # and back again


def test_what_was_not_uploaded_cannot_be_deleted(live: Live):
    Graph.from_edges([[0], [1]], np.eye(3)).save(live.settings.graphs / "by-hand")
    assert "every installation" in live.http.delete("/v1/datasets/cora").json()["detail"]
    by_hand = live.http.delete("/v1/datasets/by-hand")
    assert (by_hand.status_code, "command line" in by_hand.json()["detail"]) == (403, True)
    ref = push(live, "bare").json()["ref"]
    bare = live.http.delete("/v1/datasets/bare")
    assert (bare.status_code, ref in bare.json()["detail"]) == (409, True)
    for name in ("nobody", "files", "a.0123456789ab", "%2e%2e%2fx", "a%00b", "x" * 300, "%F0%9F%A6%84"):
        expected = 400 if "%00" in name else 404
        assert live.http.delete(f"/v1/datasets/{name}").status_code == expected, name
        assert live.http.get(f"/v1/datasets/{name}").status_code == expected, name
    taken = push(live, "by-hand")
    assert (taken.status_code, taken.json()["errors"][0]["field"]) == (409, "name")


def test_files_that_lost_their_row_can_be_used_sent_again_and_deleted(live: Live):
    ref = push(live, "lost").json()["ref"]
    live.store.datasets.delete(ref)
    job = submit(live, ref)
    assert live.http.delete(f"/v1/datasets/{ref}").status_code == 409
    end(live, job["id"])
    assert push(live, "lost").status_code == 201
    live.store.datasets.delete(ref)
    assert live.http.delete(f"/v1/datasets/{ref}").status_code == 204
    assert not (live.settings.graphs / ref).exists()


@pytest.fixture
def three(tmp_path) -> Iterator[Live]:
    """A server with two imported graphs and three uploads."""
    settings = Settings(home=tmp_path, memory_limit="4GB", min_free_bytes=0)
    for name in ("zebra", "ant"):
        Graph.from_edges([[0, 1], [1, 2]], np.eye(3), y=[0, 1, 0]).save(tmp_path / "graphs" / name)
    with serving(settings) as live, importing(live.store, settings):
        for name in ("b", "a", "c"):
            push(live, name)
        yield live


def test_all_kinds_are_listed_once_whatever_the_page(three: Live):
    whole = PAGE.validate_json(three.http.get("/v1/datasets").content, strict=True)
    assert whole.next is None
    names = [one.name for one in whole.items]
    assert names == ["digits", "synthetic", *names[2:10], "ant", "zebra", "a", "b", "c"]
    kinds = [one.kind for one in whole.items]
    assert kinds == ["builtin", "generator", *["public"] * 8, "imported", "imported", *["uploaded"] * 3]
    ant = whole.items[names.index("ant")]
    assert (ant.nodes, ant.edges, ant.classes, ant.offline, ant.ref) == (3, 4, 2, True, "ant")
    assert ant.bytes == sum(path.stat().st_size for path in (three.settings.graphs / "ant").iterdir())
    for limit in (1, 2, 3, 5, 10, 12, 14, 15, 16):
        found, cursor = [], None
        while cursor is not None or not found:
            query = {"limit": limit} | ({"cursor": cursor} if cursor else {})
            page = three.http.get("/v1/datasets", params=query).json()
            assert len(page["items"]) <= limit
            found += [one["name"] for one in page["items"]]
            cursor = page["next"]
        assert found == names, limit
    for query in ({"limit": 0}, {"limit": 501}, {"cursor": "elsewhere"}, {"cursor": "known:x"}, {"limit": "many"}):
        refused = three.http.get("/v1/datasets", params=query)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, next(iter(query)))


def test_a_damaged_import_is_shown_as_such(three: Live):
    (three.settings.graphs / "ant" / "manifest.json").write_text("{")
    shown = DOCUMENT.validate_json(three.http.get("/v1/datasets/ant").content, strict=True)
    assert (shown.state, shown.nodes) == ("failed", None)
    refused = three.http.post("/v1/jobs", json={"data": {"name": "imported", "imported": "ant"}})
    assert refused.status_code == 422
    assert str(three.settings.home) not in refused.text
