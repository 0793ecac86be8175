"""The client against a real server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from service.client import ApiError, Client, Job, JobFailed, Sweep, Unreachable, _paths
from service.settings import Settings
from service.store.records import Claim, NewEvent
from tests.service.api.server import SMALL, Live, serving
from tests.trainer.tracking.mlflow_server import free_port
from trainer.config import parse_spec
from trainer.errors import Infrastructure, InvalidInput
from trainer.files.atomic import sha256
from tuner.config import parse_sweep
from tuner.journal import Journal

SWEEP = {"base": SMALL, "trials": 2, "objective": "link_auc"}


def test_submitted_job_is_the_stored_one_and_reads_the_same(live: Live, client: Client):
    job = client.submit(SMALL, name="first", priority=7, deadline_minutes=5)
    stored = live.store.jobs.get(job.id)
    assert stored is not None
    assert (job.name, job.priority, job.state, job.attempt) == ("first", 7, "queued", 0)
    assert (stored.name, stored.priority, stored.dataset) == (job.name, job.priority, job.dataset)
    assert stored.deadline == pytest.approx(stored.created + 300, abs=60)
    assert job.created.timestamp() == pytest.approx(stored.created, abs=0.01)
    assert client.job(job.id) == job
    assert client.job(job.id).document["spec"] == stored.spec
    assert client.submit(parse_spec(SMALL)).document["spec_hash"] == job.document["spec_hash"]


def test_a_sweep_is_found_by_its_id_alone(client: Client):
    sweep = client.submit_sweep(SWEEP, name="search")
    found = client.job(sweep.id)
    assert isinstance(found, Sweep)
    assert found == sweep == client.sweep(sweep.id)
    assert [event.data["state"] for event in client.events(client.cancel(sweep.id))] == ["queued", "cancelled"]
    assert client.trials(sweep.id) == []
    with pytest.raises(ApiError, match="no best one"):
        client.best(sweep.id)
    with pytest.raises(ApiError) as error:
        client.job("01nothing")
    assert error.value.status == 404


def test_trials_and_best_settings_are_those_of_the_journal(live: Live, client: Client):
    sweep = client.submit_sweep(SWEEP)
    journal = Journal.open(live.settings.run_directory(sweep.id), parse_sweep(dict(sweep.document["spec"])))
    for number, (value, temperature) in enumerate([(0.6, 0.3), (0.8, 0.4), (0.7, 0.9)]):
        journal.record("trial", number=number, origin="search", changes={"method.temperature": temperature})
        done = {"state": "finished", "value": value, "values": [value], "epoch": 3, "seconds": 1.0, "error": None}
        journal.record("done", number=number, **done)
    journal.close()
    assert [(row["number"], row["value"]) for row in client.trials(sweep.id)] == [(0, 0.6), (1, 0.8), (2, 0.7)]
    best = client.best(sweep.id)
    assert best["method"]["temperature"] == 0.4
    assert client.submit(best).state == "queued"


def test_lists_go_through_all_pages_newest_first(monkeypatch, client: Client):
    monkeypatch.setattr(_paths, "PAGE", 3)
    made = [client.submit(SMALL).id for _ in range(8)]
    sweep = client.submit_sweep(SWEEP)
    client.cancel(made[2])
    assert [job.id for job in client.jobs()] == made[::-1]
    assert [job.id for job in client.jobs(limit=4)] == made[:-5:-1]
    assert [job.id for job in client.jobs(state="cancelled")] == [made[2]]
    assert list(client.jobs(dataset="nowhere")) == []
    assert [found.id for found in client.sweeps()] == [sweep.id]
    assert {found.name for found in client.datasets()} >= {"digits", "synthetic", "physics"}
    assert client.dataset("digits").document["nodes"] == 1_797


def test_jobs_are_found_by_what_was_noted_on_them_and_can_be_changed(client: Client):
    noted = client.submit(SMALL, name="first", metadata={"team": "graphs", "n": "a=b&c"})
    sweep = client.submit_sweep(SWEEP, metadata={"team": "graphs"})
    other = client.submit(SMALL)
    assert [job.id for job in client.jobs(metadata={"team": "graphs", "n": "a=b&c"})] == [noted.id]
    assert [job.id for job in client.jobs(name="first")] == [noted.id]
    assert [job.id for job in client.jobs(created_from=noted.created)] == [other.id, noted.id]
    assert list(client.jobs(created_before=noted.created)) == []
    assert sweep.document["metadata"] == {"team": "graphs"}
    changed = client.update(noted, name="second", priority=3, metadata={"team": None})
    assert (changed.name, changed.priority, changed.document["metadata"]) == ("second", 3, {"n": "a=b&c"})
    assert client.job(noted.id) == changed
    assert client.update(sweep.id, priority=4).priority == 4
    with pytest.raises(ApiError, match="priority"):
        client.update(noted, priority="high")


def test_an_estimate_is_what_the_job_needs(client: Client):
    estimate = client.estimate(SMALL)
    assert client.submit(SMALL).document["memory_bytes"] == estimate["memory"]["total"]
    with pytest.raises(ApiError, match="temperature"):
        client.estimate({"method": {"temperature": -1}})


def test_the_same_idempotency_key_gives_the_same_job(client: Client):
    one = client.submit(SMALL, idempotency_key="k1")
    assert client.submit(SMALL, idempotency_key="k1").id == one.id
    assert client.submit(SMALL).id != client.submit(SMALL).id
    with pytest.raises(ApiError, match="Idempotency-Key") as error:
        client.submit({**SMALL, "optimiser": {"epochs": 4}}, idempotency_key="k1")
    assert error.value.status == 422
    assert len(list(client.jobs())) == 3


def test_refusals_name_every_field_and_carry_the_exit_code(client: Client):
    with pytest.raises(ApiError) as error:
        client.submit({"method": {"temperature": -1}, "nonsense": 1})
    told = error.value
    assert {entry["field"] for entry in told.errors} == {"method.temperature", "nonsense"}
    assert "method.temperature: " in str(told)
    assert "nonsense: " in str(told)
    assert (told.status, told.kind, told.exit_code) == (422, "invalid", 3)
    with pytest.raises(InvalidInput, match="JSON"):
        client.submit({"method": {"temperature": float("nan")}})


@pytest.mark.parametrize("name", ["", "..", "a/b", "../v1/jobs", "a?b", "a b", "%2e%2e"])
def test_ids_cannot_lead_elsewhere(client: Client, name):
    for call in (client.job, client.sweep, client.cancel, client.delete, client.dataset, client.delete_dataset):
        with pytest.raises(InvalidInput):
            call(name)
    with pytest.raises(InvalidInput):
        client.figure(client.submit(SMALL), name)


def test_events_come_in_order_to_the_end_and_from_any_number(live: Live, client: Client):
    job = client.submit(SMALL)
    claimed = live.claim(job.id)
    live.tell(claimed, 1, 2)
    live.store.claims.record(Claim.on(claimed), [NewEvent("phase", {"name": "a\u2028b"})])
    live.finish(claimed)
    told = list(client.events(job))
    assert [event.seq for event in told] == [1, 2, 3, 4, 5, 6]
    assert [event.type for event in told] == ["state", "state", "epoch", "epoch", "phase", "state"]
    assert told[3].data["epoch"] == 2
    assert told[3].data["metrics"] == {"loss": 0.5}
    assert told[4].data["name"] == "a\u2028b"
    assert list(client.events(job, after=4)) == told[4:]
    assert list(client.events(job.id, after=6)) == []
    assert client.metrics(job)["series"] == {"loss": [1.0, 0.5]}


def test_waiting_gives_the_job_or_says_why_not(live: Live, client: Client):
    job = client.submit(SMALL)
    with pytest.raises(TimeoutError, match="queued"):
        client.wait(job, timeout=0.05)
    timer = threading.Timer(0.2, lambda: live.finish(live.claim(job.id)))
    timer.start()
    assert client.wait(job.id, timeout=120).state == "succeeded"
    job = client.submit(SMALL)
    live.finish(live.claim(job.id), "failed", failure_kind="oom", failure_message="no memory left")
    with pytest.raises(JobFailed, match="no memory left") as error:
        client.wait(job)
    assert (error.value.kind, error.value.exit_code, error.value.job_id) == ("oom", 4, job.id)
    with pytest.raises(JobFailed) as cancelled:
        client.wait(client.cancel(client.submit(SMALL)))
    assert (cancelled.value.kind, cancelled.value.exit_code) == ("cancelled", 6)


def test_cancelling_twice_is_fine_but_what_has_ended_otherwise_is_refused(live: Live, client: Client):
    job = client.submit(SMALL)
    assert client.cancel(job).state == "cancelled"
    assert client.cancel(job.id).state == "cancelled"
    client.delete(job)
    with pytest.raises(ApiError) as error:
        client.delete(job)
    assert error.value.status == 404
    other = client.submit(SMALL)
    live.finish(live.claim(other.id))
    with pytest.raises(ApiError, match="succeeded") as late:
        client.cancel(other)
    assert late.value.status == 409


def exported(live: Live, job: Job, ids: np.ndarray) -> np.ndarray:
    """Leave what a run leaves, and end the job."""
    folder = live.settings.run_directory(job.id) / "embeddings"
    folder.mkdir(parents=True)
    vectors = np.random.default_rng(0).normal(size=(len(ids), 16)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    is_int = ids.dtype.kind == "i"
    if is_int:
        np.save(folder / "ids.npy", ids)
    else:
        (folder / "ids.json").write_text(json.dumps(ids.tolist()))
    files = ["vectors.npy", "ids.npy" if is_int else "ids.json"]
    manifest = {"id_type": "int" if is_int else "str", "files": {name: sha256(folder / name) for name in files}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    live.finish(live.claim(job.id), result={"embeddings": True, "metrics": {"rows": len(ids)}})
    return vectors


@pytest.mark.parametrize("ids", [np.arange(50) * 3, np.array([f"p-{i}" for i in range(50)])], ids=["int", "str"])
def test_embeddings_arrive_as_they_were_exported(live: Live, client: Client, tmp_path: Path, ids):
    job = client.submit(SMALL)
    vectors = exported(live, job, ids)
    for directory in (None, tmp_path / "kept"):
        found, names = client.embeddings(job, directory)
        assert np.array_equal(found, vectors)
        assert np.array_equal(names, ids)
        assert isinstance(found, np.memmap) == (directory is not None)
    assert client.job(job.id).result == {"rows": 50}


def test_embeddings_that_differ_from_their_checksum_are_refused(live: Live, client: Client):
    job = client.submit(SMALL)
    exported(live, job, np.arange(50))
    file = live.settings.run_directory(job.id) / "embeddings" / "vectors.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(Infrastructure, match=r"vectors\.npy .* differs from its checksum"):
        client.embeddings(job)


def test_pickles_are_never_loaded(live: Live, client: Client, tmp_path: Path):
    job = client.submit(SMALL)
    exported(live, job, np.arange(50))
    folder = live.settings.run_directory(job.id) / "embeddings"
    np.save(folder / "vectors.npy", np.array([{}], dtype=object), allow_pickle=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["vectors.npy"] = sha256(folder / "vectors.npy")
    manifest["files"]["../../outside"] = "0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for directory in (None, tmp_path / "kept"):
        with pytest.raises(ValueError, match=r"allow_pickle|Python objects"):
            client.embeddings(job, directory)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["ids.npy", "manifest.json", "vectors.npy"]


def test_log_and_figures(live: Live, client: Client):
    job = client.submit(SMALL)
    folder = live.settings.run_directory(job.id)
    (folder / "figures").mkdir(parents=True)
    (folder / "log.txt").write_text("one\ntwo\nthree\n")
    (folder / "figures" / "curves.png").write_bytes(b"\x89PNG...")
    live.finish(live.claim(job.id), result={"figures": ["curves.png"]})
    assert client.log(job) == "one\ntwo\nthree\n"
    assert client.log(job.id, tail=2) == "two\nthree\n"
    assert client.figure(job, "curves.png") == b"\x89PNG..."
    with pytest.raises(ApiError):
        client.figure(job, "other.png")


def test_keys_are_sent_and_a_missing_or_wrong_one_is_explained(monkeypatch, tmp_path: Path):
    with serving(Settings(home=tmp_path / "home", require_key=True)) as locked:
        _, text = locked.store.keys.create("ada", ["submit"])
        with Client(locked.url, text) as client:
            assert client.submit(SMALL).document["owner"] is not None
        monkeypatch.setenv("NML_URL", locked.url)
        monkeypatch.setenv("NML_API_KEY", text)
        with Client() as client:
            assert client.url == locked.url
            assert len(list(client.jobs())) == 1
        for key in ("", f"{text[:-1]}{'1' if text[-1] == '0' else '0'}"):
            with Client(key=key) as client, pytest.raises(ApiError, match="key") as error:
                list(client.jobs())
            assert error.value.status == 401
        with pytest.raises(InvalidInput, match="characters"):
            Client(key="nml_1\r\nX-Other: 1")


def test_a_service_that_is_not_there_is_named_with_the_remedy():
    port = free_port()
    said: list[str] = []
    client = Client(f"http://127.0.0.1:{port}", patience=0.5, notice=said.append)
    with client, pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port}.*nml serve") as error:
        client.job("01a")
    assert error.value.exit_code == 5
    assert len(said) == 1


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host/?a=b", "http://u:p@host"])
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(InvalidInput, match="http://host:8000"):
        Client(url)


def test_a_redirect_is_never_followed_and_another_server_not_taken_for_ours():
    seen: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(307 if self.server is first else 200)
            self.send_header("Location", f"http://localhost:{second.server_port}/v1/jobs/01a")
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as first, HTTPServer(("127.0.0.1", 0), Elsewhere) as second:
        for server in (first, second):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{first.server_port}", "nml_secret")
        with client, pytest.raises(ApiError, match="redirects to http://localhost"):
            client.job("01a")
        assert seen == ["Bearer nml_secret"]
        client = Client(f"http://127.0.0.1:{second.server_port}", key="")
        with client, pytest.raises(Infrastructure, match="instead of JSON, so it is not this service"):
            client.job("01a")
        for server in (first, second):
            server.shutdown()
