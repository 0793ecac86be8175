"""Jobs as clients see them while they wait, run and end."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from service.api.schemas import JobDocument, JobPage
from service.store.engine import writing
from service.store.records import NewJob
from service.store.tables import jobs
from tests.service.api.server import SMALL, Live
from tests.service.api.test_problems import checked


def document(live: Live, job_id: str) -> dict[str, Any]:
    """The job's document, which must be as it is described."""
    response = live.http.get(f"/v1/jobs/{job_id}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    JobDocument.model_validate(found)
    return found


def test_from_queue_to_end(live: Live) -> None:
    job_id = live.submit()["id"]
    waiting = document(live, job_id)
    assert (waiting["attempt"], waiting["started"], waiting["ended"]) == (0, None, None)
    assert waiting["links"]["cancel"] == f"/v1/jobs/{job_id}/cancel"
    job = live.claim(job_id)
    progress = {"phase": "train", "epoch": 2, "epochs": 3, "share": 0.5, "epochs_per_second": 4.0, "eta_seconds": 0.25}
    live.tell(job, 1, 2, progress=progress, metrics={"loss": 0.5}, mlflow_run_id="abc123")
    running = document(live, job_id)
    assert (running["state"], running["attempt"], running["metrics"]) == ("running", 1, {"loss": 0.5})
    assert running["progress"] == progress
    assert running["last_event"] == 4
    assert running["started"] >= running["created"]
    assert running["links"]["mlflow"] is None
    left = {"figures": ["loss.png", "mi.png"], "embeddings": True, "metrics": {"eval": {"accuracy": 0.9}}}
    live.finish(job, result=left)
    ended = document(live, job_id)
    assert (ended["state"], ended["failure"], ended["links"]["cancel"]) == ("succeeded", None, None)
    assert ended["ended"] >= ended["started"]
    assert ended["result"] == {"eval": {"accuracy": 0.9}}
    assert ended["links"]["figures"] == [f"/v1/jobs/{job_id}/figures/{name}" for name in ("loss.png", "mi.png")]
    assert ended["links"]["embeddings"] == f"/v1/jobs/{job_id}/embeddings/manifest.json"


def test_failure_is_told_whatever_is_in_its_message(live: Live) -> None:
    live.submit()
    job = live.claim()
    live.finish(job, "failed", failure_kind="infra", failure_message="cannot read \udcff\x1b[0m.npz")
    failed = document(live, job.id)
    assert failed["failure"]["kind"] == "infra"
    assert failed["failure"]["message"].startswith("cannot read \N{REPLACEMENT CHARACTER}")
    assert failed["links"]["embeddings"] is None


def test_link_to_mlflow(serve: Any) -> None:
    live = serve(mlflow_ui_url="http://127.0.0.1:5000/")
    live.submit()
    job = live.claim()
    live.tell(job, 1, mlflow_run_id="abc123")
    assert document(live, job.id)["links"]["mlflow"] == "http://127.0.0.1:5000/#/runs/abc123"


@pytest.mark.parametrize(
    "job_id",
    ["absent", "01jx0a3z5m8q2v7w9c4t6r1b0d", "a" * 65, "a" * 10_000, "..", "%2e%2e%2f", "x'--", "é", "*", "%20"],
)
@pytest.mark.parametrize("path", ["", "/events", "/log", "/metrics", "/figures/loss.png", "/embeddings/ids.npy"])
def test_no_such_job(shared: Live, job_id: str, path: str) -> None:
    checked(shared.http.get(f"/v1/jobs/{job_id}{path}"), 404)


def test_pages_give_every_job_once_newest_first(live: Live) -> None:
    made = [live.submit()["id"] for _ in range(7)]
    seen, cursor = [], None
    while True:
        page = live.http.get("/v1/jobs", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        JobPage.model_validate(page)
        assert len(page["items"]) <= 3
        assert all(not {"spec", "result"} & set(item) for item in page["items"])
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(made, reverse=True)


def test_lists_by_state_and_data_set(live: Live) -> None:
    first, second, third = live.submit(), live.submit({"data": {"name": "digits"}}), live.submit()
    live.claim(first["id"])
    live.http.post(f"/v1/jobs/{third['id']}/cancel")

    def ids(**query: Any) -> list[str]:
        return [item["id"] for item in live.http.get("/v1/jobs", params=query).json()["items"]]

    assert ids(state="running") == [first["id"]]
    assert ids(state=["queued", "cancelled"]) == [third["id"], second["id"]]
    assert ids(dataset="digits") == [second["id"]]
    assert ids(dataset="digits", state="running") == []
    assert ids(dataset="nothing' OR 1=1") == []


def test_lists_by_name_time_and_metadata(live: Live) -> None:
    made = [
        live.http.post("/v1/jobs", json=SMALL | {"name": name, "metadata": metadata}).json()
        for name, metadata in (("a", {"team": "graphs", "n": "1=1"}), ("ä b", {"team": "graphs"}), ("a", {}))
    ]
    ids = [job["id"] for job in made]
    for at, job_id in enumerate(ids):
        with writing(live.store.database) as connection:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(created=1_777_887_000.0 + at))

    def found(**query: Any) -> list[str]:
        response = live.http.get("/v1/jobs", params=query)
        assert response.status_code == 200, response.text
        JobPage.model_validate(response.json())
        return [item["id"] for item in response.json()["items"]]

    assert found(name="a") == [ids[2], ids[0]]
    assert found(name="ä b", state="queued", dataset="synthetic") == [ids[1]]
    assert found(metadata="team=graphs") == [ids[1], ids[0]]
    assert found(metadata=["team=graphs", "n=1=1"]) == [ids[0]]
    assert found(metadata="team=") == []
    assert found(created_from="2026-05-04T09:30:01Z") == [ids[2], ids[1]]
    assert found(created_before="2026-05-04T11:30:01+02:00") == [ids[0]]
    assert found(created_from="2026-05-04T09:30:01Z", created_before="2026-05-04T09:30:02Z") == [ids[1]]
    for name, text in {
        "created_from": "yesterday",
        "created_before": "2026-05-04T09:30:01",
        "metadata": "team",
    }.items():
        refused = checked(live.http.get("/v1/jobs", params={name: text}), 422)
        assert [error.field.partition(".")[0] for error in refused.errors or ()] == [name]
    checked(live.http.get("/v1/jobs", params={"metadata": ["a=1", "a=2"]}), 422)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sweeps"])
def test_name_priority_and_metadata_can_be_changed(live: Live, path: str) -> None:
    spec = SMALL if path == "/v1/jobs" else {"base": SMALL, "concurrency": 1}
    made = live.http.post(path, json=spec | {"name": "first", "metadata": {"a": "1", "b": "2"}}).json()
    own = made["links"]["self"]
    for body, changed in (
        ({"priority": 7}, {"priority": 7}),
        ({"name": "second"}, {"name": "second"}),
        ({"name": None, "metadata": {"a": None, "c": "3"}}, {"name": None, "metadata": {"b": "2", "c": "3"}}),
    ):
        answer = live.http.patch(own, json=body)
        assert answer.status_code == 200, answer.text
        made = made | changed
        assert answer.json() == made
        assert live.http.get(own).json() == made
    many = {f"k{number}": "x" for number in range(19)}
    refused = checked(live.http.patch(own, json={"metadata": many}), 422)
    assert [error.field for error in refused.errors or ()] == ["metadata"]
    live.http.post(f"{own}/cancel")
    assert "was cancelled" in checked(live.http.patch(own, json={"priority": 1}), 409).detail
    assert live.http.patch(own, json={"metadata": {"kept": "yes"}}).json()["metadata"]["kept"] == "yes"
    checked(live.http.patch(f"{path}/{'0' * 26}", json={"priority": 1}), 404)


def test_jobs_and_sweeps_do_not_mix(live: Live) -> None:
    job = live.submit()["id"]
    sweep = live.http.post("/v1/sweeps", json={"base": SMALL, "concurrency": 1}).json()["id"]
    assert [item["id"] for item in live.http.get("/v1/jobs").json()["items"]] == [job]
    assert [item["id"] for item in live.http.get("/v1/sweeps").json()["items"]] == [sweep]
    checked(live.http.get(f"/v1/jobs/{sweep}"), 404)
    checked(live.http.get(f"/v1/sweeps/{job}"), 404)
    checked(live.http.post(f"/v1/jobs/{sweep}/cancel"), 404)
    checked(live.http.delete(f"/v1/sweeps/{job}"), 404)


def test_cancel_one_that_waits_and_one_that_runs(live: Live) -> None:
    runs, waits = live.submit()["id"], live.submit()["id"]
    job = live.claim(runs)
    cancelled = live.http.post(f"/v1/jobs/{waits}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    for _ in range(2):
        asked = live.http.post(f"/v1/jobs/{runs}/cancel")
        assert (asked.status_code, asked.json()["state"]) == (202, "cancelling")
        JobDocument.model_validate(asked.json())
    checked(live.http.delete(f"/v1/jobs/{runs}"), 409)
    live.finish(job, "cancelled")
    assert "was cancelled" in checked(live.http.post(f"/v1/jobs/{runs}/cancel"), 409).detail


def test_delete_takes_rows_and_files(live: Live) -> None:
    job_id = live.submit()["id"]
    for folder in (live.settings.run_directory(job_id), live.settings.job_directory(job_id)):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "log.txt").write_text("hello")
    outside = live.settings.home / "outside.txt"
    outside.write_text("mine")
    (live.settings.run_directory(job_id) / "link").symlink_to(live.settings.home)
    checked(live.http.delete(f"/v1/jobs/{job_id}"), 409)
    live.finish(live.claim(job_id))
    deleted = live.http.delete(f"/v1/jobs/{job_id}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert not live.settings.run_directory(job_id).exists()
    assert not live.settings.job_directory(job_id).exists()
    assert outside.read_text() == "mine"
    checked(live.http.get(f"/v1/jobs/{job_id}"), 404)
    checked(live.http.delete(f"/v1/jobs/{job_id}"), 404)


def test_check_of_an_upload_can_be_followed_but_not_cancelled(live: Live) -> None:
    new = NewJob("import", {"upload": "/secret/place"}, "0" * 64, "mine.0123456789ab")
    job, _ = live.store.jobs.submit(new)
    shown = document(live, job.id)
    assert (shown["kind"], shown["spec"], shown["dataset"]) == ("import", None, "mine.0123456789ab")
    assert shown["links"]["cancel"] is None
    assert live.http.get("/v1/jobs").json()["items"] == []
    assert "data set" in checked(live.http.post(f"/v1/jobs/{job.id}/cancel"), 409).detail
    checked(live.http.delete(f"/v1/jobs/{job.id}"), 409)
