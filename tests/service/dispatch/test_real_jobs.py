"""The real trainer, importer and MLflow under a dispatcher, on graphs of a few hundred nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.dispatch.job_commands import JobCommands
from service.dispatch.procfs import command_of, find_by_variable
from service.dispatch.runner import MARKER
from service.store.records import Claim, NewJob
from tests.service.dispatch import held_trainer
from tests.service.dispatch.conftest import ended, events_of, running, until
from tests.trainer.tracking.mlflow_server import mlflow_client
from tests.trainer.tracking.runs import HandMadeRun
from trainer.config import parse_spec
from trainer.files.journal import fold
from trainer.run.directory import read_events

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def commands(settings):
    return JobCommands(settings)


def document(*, epochs: int, track: bool) -> dict:
    return parse_spec(
        {
            "data": {"name": "synthetic", "synthetic": {"nodes": 400, "features": 16, "active_features": 3}},
            "encoder": {"hidden": 16, "dim": 8}, "method": {"inner_steps": 1, "metric": {"hidden": 8}},
            "optimiser": {"epochs": epochs}, "evaluation": {"figures": False},
            "run": {"track": track, "checkpoint_every": 5, "threads": 1},
        }
    ).model_dump(mode="json")  # fmt: skip


def figures(events) -> list[dict]:
    """Of each epoch, without what no two executions share."""
    found = [event["metrics"] for event in events if event["type"] == "epoch"]
    return [
        {name: value for name, value in one.items() if name not in ("seconds", "cpu_seconds", "rss_mb")}
        for one in found
    ]


def trainer_of(job) -> int:
    """The trainer's process, of the present attempt."""
    found = find_by_variable(MARKER, f"{job.id}.{job.attempt}")
    names = {"trainer", Path(held_trainer.__file__).name}
    return next(process for process in found if names & {Path(word).name for word in command_of(process)})


@pytest.mark.slow
def test_a_killed_trainer_gives_the_curve_of_an_uninterrupted_one_and_one_mlflow_run(
    dispatching, store, settings, tmp_path
):
    spec = document(epochs=60, track=True)
    job, _ = store.jobs.submit(NewJob("train", spec, "x", "synthetic", memory_bytes=10**9))
    dispatching(commands=JobCommands(settings, train=(sys.executable, "-P", held_trainer.__file__, "12")))
    running(store, job.id, 12, seconds=200)
    until(lambda: store.jobs.get(job.id).mlflow_run_id)
    os.kill(trainer_of(store.jobs.get(job.id)), signal.SIGKILL)
    done = ended(store, job.id, 200)
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", 2, 1)
    told = [event.data for event in events_of(store, job.id) if event.type != "state"]
    assert [event["epoch"] for event in told if event["type"] == "rewind"] == [10]
    (tmp_path / "spec.json").write_text(json.dumps(spec | {"run": spec["run"] | {"track": False}}))
    command = [sys.executable, "-m", "trainer", str(tmp_path / "spec.json"), "--out", str(tmp_path / "alone")]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert figures(fold(told)) == figures(read_events(tmp_path / "alone"))
    assert done.result["embeddings"]
    client = mlflow_client(settings.tracking_uri)
    (run,) = client.search_runs([client.get_experiment_by_name(spec["run"]["experiment"]).experiment_id])
    assert (run.info.run_id, run.info.status) == (done.mlflow_run_id, "FINISHED")


@pytest.mark.slow
def test_mlflow_learns_of_a_run_that_was_killed_for_good(dispatching, store, settings):
    job, _ = store.jobs.submit(NewJob("train", document(epochs=100_000, track=True), "x", "synthetic"))
    dispatching(settings=settings.model_copy(update={"infra_retries": 0}))
    running(store, job.id, 3, seconds=200)
    run_id = until(lambda: store.jobs.get(job.id).mlflow_run_id)
    os.kill(trainer_of(store.jobs.get(job.id)), signal.SIGKILL)
    done = ended(store, job.id)
    assert (done.state, done.failure_kind) == ("failed", "infra")
    client = mlflow_client(settings.tracking_uri)
    until(lambda: client.get_run(run_id).info.status == "FAILED", 200)
    assert "SIGKILL" in client.get_run(run_id).data.tags["error"]


@pytest.mark.slow
def test_mlflow_learns_of_a_run_that_was_cancelled_between_two_attempts(dispatching, store, settings):
    job, _ = store.jobs.submit(NewJob("train", document(epochs=5, track=True), "x", "synthetic"))
    claim = Claim.on(store.claims.claim("gone", kinds=("train",), lease_seconds=60))
    client = mlflow_client(settings.tracking_uri)
    run_id = client.create_run(client.create_experiment("nml")).info.run_id
    note = {"key": "k", "run_id": run_id, "experiment": "nml"}
    settings.run_directory(job.id).mkdir(parents=True)
    (settings.run_directory(job.id) / "tracking.json").write_text(json.dumps(note))
    store.claims.requeue(
        claim, delay=600, reason="its process died", failure_kind="infra", infra_retries=1, oom_retries=0
    )
    assert store.jobs.cancel(job.id).state == "cancelled"
    assert client.get_run(run_id).info.status == "RUNNING"
    dispatching()
    until(lambda: client.get_run(run_id).info.status == "KILLED", 200)


@pytest.mark.slow
def test_mlflow_learns_of_a_run_that_succeeded_while_it_was_away(dispatching, store, settings):
    job, _ = store.jobs.submit(NewJob("train", document(epochs=5, track=True), "x", "synthetic"))
    claim = Claim.on(store.claims.claim("gone", kinds=("train",), lease_seconds=60))
    directory = settings.run_directory(job.id)
    directory.parent.mkdir(parents=True, exist_ok=True)
    run = HandMadeRun(directory, run={"experiment": "away"})
    run.epochs(1, 5)
    run.end(5)
    note = {"key": "k", "experiment": "away", "error": "connection refused"}
    (directory / "tracking.json").write_text(json.dumps(note))
    store.claims.record(claim, tracker_error="connection refused")
    store.claims.finish(claim, "succeeded")
    dispatching()
    until(lambda: json.loads((directory / "tracking.json").read_text()).get("status") == "FINISHED", 200)
    client = mlflow_client(settings.tracking_uri)
    (run,) = client.search_runs([client.get_experiment_by_name("away").experiment_id])
    assert (run.info.status, run.data.metrics["loss"]) == ("FINISHED", 1 / 5)


def upload(settings, features: np.ndarray) -> dict:
    """An upload of a ring of nodes, and the spec of the job that imports it."""
    folder = settings.uploads / ("0" * 32)
    folder.mkdir(parents=True)
    nodes = np.arange(len(features))
    np.savez(folder / "graph.npz", x=features, edge_index=np.stack([nodes, np.roll(nodes, 1)]))
    return {"ref": "ring.0123456789ab", "upload": "0" * 32, "parts": {"npz": "graph.npz"}, "options": {}}


@pytest.mark.parametrize("good", [True, False])
def test_an_import_makes_its_data_set_ready_or_says_what_is_wrong(dispatching, store, settings, good):
    features = np.eye(20, dtype=np.float32)
    features[3, 3] = 1.0 if good else np.nan
    spec = upload(settings, features)
    job = NewJob("import", spec, "x", "ring.0123456789ab")
    made, _ = store.datasets.create("ring", "0123456789ab", options={}, size=1, job=job)
    dispatching()
    done = ended(store, made.job_id)
    dataset = store.datasets.get(made.ref)
    if good:
        assert (done.state, dataset.state) == ("succeeded", "ready"), done.failure_message
        assert dataset.about
    else:
        assert (done.state, done.failure_kind, dataset.state) == ("failed", "invalid", "failed")
        assert dataset.failure == done.failure_message
    assert not (settings.uploads / spec["upload"]).exists()


def test_a_sweep_is_relayed_line_by_line(dispatching, store, settings, tmp_path):
    """A script stands in for the tuner, killed in the middle: the second attempt appends to its journal."""
    script = tmp_path / "tuner.py"
    script.write_text(
        """
import json, os, pathlib, signal, sys, time
out = pathlib.Path(sys.argv[3])
out.mkdir(parents=True, exist_ok=True)
journal = out / "events.jsonl"
first = not journal.exists()
def record(kind, **fields):
    with journal.open("a") as file:
        file.write(json.dumps({"type": kind, "time": time.time(), "elapsed": 1.0, **fields}) + "\\n")
        file.flush()
record("start" if first else "resume")
for number in range(0 if first else 3, 3 if first else 5):
    record("trial", number=number, origin="search", changes={})
    record("done", number=number, state="finished", value=number / 10, values=[], epoch=5, seconds=1.0, error=None)
if first:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
record("end", state="succeeded", best=4, value=0.4, out_of_time=False)
(out / "results.json").write_text(json.dumps({"best": 4, "value": 0.4, "trials": [1, 2]}))
""",
        encoding="utf-8",
    )
    job, _ = store.jobs.submit(NewJob("sweep", {"trials": 5}, "x", "digits"))
    dispatching(commands=JobCommands(settings, sweep=(sys.executable, str(script))))
    done = ended(store, job.id)
    assert (done.state, done.attempt) == ("succeeded", 2)
    told = [event for event in events_of(store, job.id) if event.type != "state"]
    lines = (settings.run_directory(job.id) / "events.jsonl").read_text().splitlines()
    assert [event.data for event in told] == [json.loads(line) for line in lines]
    assert done.relay == {"offset": (settings.run_directory(job.id) / "events.jsonl").stat().st_size}
    assert (done.progress["finished"], done.progress["best"], done.progress["share"]) == (5, 4, 1.0)
    assert done.result == {"metrics": {"best": 4, "value": 0.4}, "figures": [], "embeddings": False}
