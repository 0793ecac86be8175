"""The tracker against real MLflow, as a SQLite file and as a server: what arrives, resumes, and survives a restart."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.mlflow_server import Server, mlflow_client, wait_until
from trainer.callbacks import Result, RunInfo
from trainer.config import TrainSpec, spec_hash
from trainer.errors import Cancelled, InvalidInput
from trainer.tracking import Tracker, tracking_uri
from trainer.tracking_run import flatten


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


def run_info(directory: Path, first_epoch: int = 1, **sections: Any) -> RunInfo:
    directory.mkdir(exist_ok=True)
    spec = TrainSpec.model_validate(sections)
    return RunInfo(directory, spec, spec_hash(spec), 100, 400, first_epoch, {"dataset": "digits", "seed": "0"})


def epoch(number: int) -> dict[str, Any]:
    return {"epoch": number, "metrics": {"loss": 1 / number, "kl": 0.1 * number}}


def result(directory: Path, epochs: int, **metrics: Any) -> Result:
    return Result(directory, metrics, directory / "embeddings" / "vectors.npy", epochs)


def steps(uri: str, run_id: str, key: str = "loss") -> list[int]:
    return [point.step for point in mlflow_client(uri).get_metric_history(run_id, key)]


def start(directory: Path, *, uri: str | None = None, home: Path | None = None, **sections: Any) -> Tracker:
    tracker = Tracker(uri=uri, home=home)
    tracker.on_start(run_info(directory, **sections))
    return tracker


def test_everything_arrives(uri, home, tmp_path):
    for name in ("spec.json", "metrics.json", "embeddings/manifest.json", "embeddings/vectors.npy", "figures/loss.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    tracker = start(tmp_path, uri=uri, home=home, run={"name": "first"})
    for number in range(1, 41):
        tracker.on_epoch(epoch(number))
    tracker.on_end(result(tmp_path, 40, loss=0.5, eval={"probe": {"test_accuracy": 0.8, "folds": [1, 2], "ok": True}}))

    summary = tracker.summary()
    assert summary == {**summary, "enabled": True, "error": None, "dropped": 0, "sent": 82, "experiment": "nml-gcl"}
    client = mlflow_client(uri)
    run = client.get_run(summary["run_id"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert set(run.data.params) >= set(flatten(TrainSpec().model_dump()))
    assert run.data.params["augment.edge_drop"] == "[0.4, 0.4]"
    assert run.data.params["graph.num_nodes"] == "100"
    hashed = spec_hash(TrainSpec())
    assert run.data.tags == run.data.tags | {"dataset": "digits", "seed": "0", "spec_hash": hashed}
    assert [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss")] == [
        (number, 1 / number) for number in range(1, 41)
    ]
    assert run.data.metrics["eval.probe.test_accuracy"] == 0.8
    assert run.data.metrics["eval.probe.ok"] == 1.0
    files = {
        item.path for folder in ("", "figures", "embeddings") for item in client.list_artifacts(run.info.run_id, folder)
    }
    assert files == {
        "spec.json",
        "metrics.json",
        "embeddings",
        "embeddings/manifest.json",
        "figures",
        "figures/loss.png",
    }
    note = json.loads((tmp_path / "tracking.json").read_text())
    assert note == {**note, "uri_kind": uri.split(":")[0], "experiment": "nml-gcl", "run_id": run.info.run_id}


def test_artifacts_of_a_database_are_kept_at_home(home, tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    tracker = start(tmp_path, home=home)
    tracker.on_end(result(tmp_path, 1))
    run_id = tracker.summary()["run_id"]
    assert (home / "mlartifacts" / run_id / "artifacts" / "spec.json").is_file()


def test_numbers_that_are_not_finite_arrive_and_break_nothing(uri, home, tmp_path):
    tracker = start(tmp_path, uri=uri, home=home)
    for number, value in enumerate([math.nan, math.inf, -math.inf, 10**400, "text", None, 2], start=1):
        tracker.on_epoch({"epoch": number, "metrics": {"odd": value}})
    tracker.on_epoch({"epoch": 8})
    tracker.on_end(result(tmp_path, 8, loss=math.nan))
    summary = tracker.summary()
    assert summary["error"] is None
    history = {point.step: point.value for point in mlflow_client(uri).get_metric_history(summary["run_id"], "odd")}
    assert set(history) == {1, 2, 3, 4, 7}
    assert math.isnan(history[1])
    assert history[2] > 1e300  # MLflow's databases keep infinity as the largest double
    assert history[3] < -1e300


def test_cancelled_run_resumes_as_the_same_run_without_repeated_steps(uri, home, tmp_path):
    tracker = start(tmp_path, uri=uri, home=home)
    for number in range(1, 7):
        tracker.on_epoch(epoch(number))
    tracker.on_failure(Cancelled("stopped"))
    run_id = tracker.summary()["run_id"]
    client = mlflow_client(uri)
    assert client.get_run(run_id).info.status == "KILLED"
    assert "stopped" in client.get_run(run_id).data.tags["error"]

    resumed = Tracker(uri=uri, home=home)
    resumed.on_start(run_info(tmp_path, first_epoch=4))
    wait_until(lambda: client.get_run(run_id).info.status == "RUNNING", seconds=20)
    for number in range(4, 11):
        resumed.on_epoch(epoch(number))
    resumed.on_end(result(tmp_path, 10))
    assert resumed.summary() == {**tracker.summary(), "sent": 8}
    assert steps(uri, run_id) == list(range(1, 11))
    assert client.get_run(run_id).info.status == "FINISHED"
    assert "error" not in client.get_run(run_id).data.tags


def test_failed_run_is_failed_and_a_retry_with_another_tile_is_the_same_run(home, tmp_path):
    tracker = start(tmp_path, home=home, sampling={"tile": 64})
    tracker.on_failure(InvalidInput("loss is NaN"))
    client = mlflow_client(tracking_uri(home))
    run_id = tracker.summary()["run_id"]
    assert client.get_run(run_id).info.status == "FAILED"

    retried = start(tmp_path, home=home, sampling={"tile": 32})
    retried.on_end(result(tmp_path, 1))
    assert retried.summary() == {**tracker.summary(), "error": None}
    data = client.get_run(run_id).data
    assert (data.params["sampling.tile"], data.tags["changed.sampling.tile"]) == ("64", "32")


def test_run_whose_id_was_lost_is_found_and_one_the_tracker_lost_is_replaced(home, tmp_path):
    def run_once() -> str:
        tracker = start(tmp_path, home=home)
        tracker.on_end(result(tmp_path, 1))
        assert tracker.summary()["error"] is None
        return str(tracker.summary()["run_id"])

    first, note = run_once(), tmp_path / "tracking.json"
    document = json.loads(note.read_text())
    note.write_text(json.dumps({key: document[key] for key in document if key != "run_id"}))  # died while creating
    assert run_once() == first

    mlflow_client(tracking_uri(home)).delete_run(first)
    second = run_once()
    assert second != first

    note.write_text("not JSON")
    assert run_once() not in (first, second)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_that_restarts_in_the_middle_of_a_run_gets_every_point(server, tmp_path):
    tracker = Tracker(uri=server.uri, home=tmp_path, finish_timeout=240)
    tracker.on_start(run_info(tmp_path))
    tracker.on_epoch(epoch(1))
    wait_until(lambda: tracker.summary()["sent"] == 2, seconds=120)
    server.stop()
    for number in range(2, 30):
        tracker.on_epoch(epoch(number))
    time.sleep(2)  # long enough for a batch to meet a closed port
    server.start(wait=False)
    tracker.on_end(result(tmp_path, 29))
    summary = tracker.summary()
    assert summary == {**summary, "error": None, "dropped": 0, "sent": 58}
    assert steps(server.uri, summary["run_id"]) == list(range(1, 30))
    assert mlflow_client(server.uri).get_run(summary["run_id"]).info.status == "FINISHED"
