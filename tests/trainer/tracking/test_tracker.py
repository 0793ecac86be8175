"""The tracker against real MLflow, as a SQLite file and as a server: what arrives, resumes, and survives a restart."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tracking.mlflow_server import Server, mlflow_client, wait_until
from tests.trainer.tracking.runs import HandMadeRun
from trainer.config import TrainSpec, spec_hash
from trainer.errors import Cancelled
from trainer.tracking import Tracker, tracking_uri
from trainer.tracking.source import flatten

SECONDS = 240.0  # for what takes a few: MLflow's import and its tables, on whatever disk


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for the module: creating MLflow's schema takes seconds."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(params=["sqlite", "http"])
def uri(request: pytest.FixtureRequest, home: Path) -> str:
    return tracking_uri(home) if request.param == "sqlite" else request.getfixturevalue("server").uri


def following(path: Path, *, uri: str | None = None, home: Path | None = None) -> Tracker:
    tracker = Tracker(uri=uri, home=home)
    tracker.follow(path)
    return tracker


def steps(uri: str, run_id: str, key: str = "loss") -> list[int]:
    return [point.step for point in mlflow_client(uri).get_metric_history(run_id, key)]


def note(path: Path) -> dict[str, Any]:
    return json.loads((path / "tracking.json").read_text())


def test_everything_arrives(uri, home, tmp_path):
    run = HandMadeRun(tmp_path, run={"name": "first"})
    tracker = following(tmp_path, uri=uri, home=home)
    run.epochs(1, 40)
    for name in ("embeddings/manifest.json", "embeddings/vectors.npy", "figures/loss.png"):
        (tmp_path / name).write_text("{}")
    run.end(40, loss=0.5, eval={"probe": {"test_accuracy": 0.8, "folds": [1, 2], "ok": True}})
    tracker.finish(SECONDS)

    summary = tracker.summary()
    assert summary == {**summary, "error": None, "sent": 82, "experiment": "nml-gcl"}
    client = mlflow_client(uri)
    found = client.get_run(summary["run_id"])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "first")
    assert set(found.data.params) >= set(flatten(TrainSpec().model_dump()))
    assert found.data.params["augment.edge_drop"] == "[0.4, 0.4]"
    assert found.data.params["graph.num_nodes"] == "100"
    hashed = spec_hash(run.spec)
    assert found.data.tags == found.data.tags | {"dataset": "digits", "seed": "0", "spec_hash": hashed}
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(number, 1 / number) for number in range(1, 41)]
    written = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    times = [round(1_000 * event["time"]) for event in written if event["type"] == "epoch"]
    assert [point.timestamp for point in history] == times
    assert found.data.metrics["eval.probe.test_accuracy"] == 0.8
    assert found.data.metrics["eval.probe.ok"] == 1.0
    files = {
        item.path
        for folder in ("", "figures", "embeddings")
        for item in client.list_artifacts(found.info.run_id, folder)
    }
    assert files == {
        "spec.json", "metrics.json", "embeddings", "embeddings/manifest.json", "figures", "figures/loss.png",
    }  # fmt: skip
    assert note(tmp_path) == note(tmp_path) | {
        "uri_kind": uri.split(":")[0], "experiment": "nml-gcl", "run_id": found.info.run_id, "status": "FINISHED",
    }  # fmt: skip


def test_artifacts_of_a_database_are_kept_at_home(home, tmp_path):
    HandMadeRun(tmp_path).end(1)
    tracker = following(tmp_path, home=home)
    tracker.finish(SECONDS)
    run_id = tracker.summary()["run_id"]
    assert (home / "mlartifacts" / run_id / "artifacts" / "spec.json").is_file()


def test_numbers_that_are_not_finite_arrive_and_break_nothing(uri, home, tmp_path):
    run = HandMadeRun(tmp_path)
    tracker = following(tmp_path, uri=uri, home=home)
    for number, value in enumerate([math.nan, math.inf, -math.inf, 10**400, "text", None, 2], start=1):
        run.epoch(number, {"odd": value})
    run.directory.record("epoch", epoch=8)
    run.end(8, loss=math.nan)
    tracker.finish(SECONDS)
    summary = tracker.summary()
    assert summary["error"] is None
    history = {point.step: point.value for point in mlflow_client(uri).get_metric_history(summary["run_id"], "odd")}
    assert set(history) == {1, 2, 3, 4, 7}
    assert math.isnan(history[1])
    assert history[2] > 1e300  # MLflow's databases keep infinity as the largest double
    assert history[3] < -1e300


def test_cancelled_run_resumes_as_the_same_run_without_repeated_steps(uri, home, tmp_path):
    run = HandMadeRun(tmp_path)
    tracker = following(tmp_path, uri=uri, home=home)
    run.epochs(1, 6)
    run.cancel(6)
    tracker.on_failure(Cancelled("stopped"))
    run_id = tracker.summary()["run_id"]
    client = mlflow_client(uri)
    assert client.get_run(run_id).info.status == "KILLED"
    assert "stopped" in client.get_run(run_id).data.tags["error"]
    assert "status" not in note(tmp_path), "it may go on"

    run = HandMadeRun(tmp_path, epoch=3)
    resumed = following(tmp_path, uri=uri, home=home)
    wait_until(lambda: client.get_run(run_id).info.status == "RUNNING", seconds=SECONDS)
    run.epochs(4, 10)
    run.end(10)
    resumed.finish(SECONDS)
    assert resumed.summary() == {**tracker.summary(), "sent": 8}
    assert steps(uri, run_id) == list(range(1, 11))
    assert client.get_run(run_id).info.status == "FINISHED"
    assert "error" not in client.get_run(run_id).data.tags


def test_failed_run_is_failed_and_a_retry_with_another_tile_is_the_same_run(home, tmp_path):
    HandMadeRun(tmp_path, sampling={"tile": 64}).fail("invalid", "loss is NaN")
    tracker = following(tmp_path, home=home)
    tracker.finish(SECONDS)
    client = mlflow_client(tracking_uri(home))
    run_id = tracker.summary()["run_id"]
    assert client.get_run(run_id).info.status == note(tmp_path)["status"] == "FAILED"
    assert client.get_run(run_id).data.tags["error"] == "invalid: loss is NaN"

    run = HandMadeRun(tmp_path, sampling={"tile": 64})
    retried = following(tmp_path, home=home)
    wait_until(lambda: client.get_run(run_id).info.status == "RUNNING", seconds=SECONDS)
    assert "status" not in note(tmp_path), "it goes on"
    run.directory.write_plan({"sampling": run.spec.sampling.model_dump(mode="json") | {"tile": 32}})
    run.directory.record("resume", epoch=0, nodes=100, edges=400, spec_hash="0" * 64, tags={})
    run.end(1)
    retried.finish(SECONDS)
    assert retried.summary() == {**tracker.summary(), "error": None}
    data = client.get_run(run_id).data
    assert (data.params["sampling.tile"], data.tags["changed.sampling.tile"]) == ("64", "32")
    assert note(tmp_path)["status"] == "FINISHED"


def test_run_whose_id_was_lost_is_found_and_one_the_tracker_lost_is_told_again_from_the_start(home, tmp_path):
    run = HandMadeRun(tmp_path)
    run.epochs(1, 3)
    run.end(3)

    def follow_once() -> str:
        tracker = following(tmp_path, home=home)
        tracker.finish(SECONDS)
        assert tracker.summary()["error"] is None
        run_id = str(tracker.summary()["run_id"])
        assert steps(tracking_uri(home), run_id) == [1, 2, 3]
        return run_id

    first, file = follow_once(), tmp_path / "tracking.json"
    document = note(tmp_path)
    file.write_text(json.dumps({key: document[key] for key in document if key != "run_id"}))  # died while creating
    assert follow_once() == first

    mlflow_client(tracking_uri(home)).delete_run(first)
    second = follow_once()
    assert second != first

    file.write_text("not JSON")
    assert follow_once() not in (first, second)


def test_failure_before_the_start_is_no_business_of_the_tracker(tmp_path):
    tracker = Tracker(home=tmp_path)
    tracker.on_failure(ValueError("no such file"))
    assert tracker.summary() == {"run_id": None, "experiment": None, "error": None, "sent": 0}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_that_restarts_in_the_middle_of_a_run_gets_every_point(server, tmp_path):
    run = HandMadeRun(tmp_path)
    tracker = following(tmp_path, uri=server.uri, home=tmp_path)
    run.epochs(1, 1)
    wait_until(lambda: tracker.summary()["sent"] == 2, seconds=120)
    server.stop()
    run.epochs(2, 29)
    time.sleep(2)  # long enough for a batch to meet a closed port
    server.start(wait=False)
    run.end(29)
    tracker.finish(SECONDS)
    summary = tracker.summary()
    assert summary == {**summary, "error": None, "sent": 58}
    assert steps(server.uri, summary["run_id"]) == list(range(1, 30))
    assert mlflow_client(server.uri).get_run(summary["run_id"]).info.status == "FINISHED"
