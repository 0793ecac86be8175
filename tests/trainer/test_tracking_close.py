"""MLflow learns that a run is over whose trainer was killed; and if MLflow is away, nobody notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.mlflow_server import free_port, mlflow_client
from trainer.tracking_close import close_all
from trainer.tracking_run import About, TrackedRun, ended_as, note_error, prepare_environment


@pytest.fixture
def uri(tmp_path):
    prepare_environment()
    return f"sqlite:///{tmp_path}/mlflow.db"


def opened(directory: Path, uri: str, home: Path) -> str:
    """A run as a killed trainer leaves it."""
    run = TrackedRun(About(directory, "tests", directory.name, {}, {}), uri=uri, home=home)
    run.open()
    assert run.run_id is not None
    return run.run_id


def test_open_runs_are_closed_those_of_trials_too_and_closed_ones_stay(tmp_path, uri):
    sweep = tmp_path / "sweep"
    ids = [opened(place, uri, tmp_path) for place in (sweep, sweep / "trials" / "0000", sweep / "trials" / "0001")]
    done = TrackedRun(About(sweep / "trials" / "0001", "tests", "x", {}, {}), uri=uri, home=tmp_path)
    done.open()
    done.end("FINISHED", {}, final=True)
    assert close_all(sweep, "FAILED", reason="killed", uri=uri, home=tmp_path) == 2
    client = mlflow_client(uri)
    assert [client.get_run(run_id).info.status for run_id in ids] == ["FAILED", "FAILED", "FINISHED"]
    assert client.get_run(ids[0]).data.tags["error"] == "killed"
    assert ended_as(sweep) == "FAILED"
    assert close_all(sweep, "KILLED", reason="again", uri=uri, home=tmp_path) == 0


def test_a_run_whose_id_never_reached_the_note_is_found_by_its_key(tmp_path, uri):
    run_id = opened(tmp_path / "run", uri, tmp_path)
    file = tmp_path / "run" / "tracking.json"
    note = json.loads(file.read_text())
    del note["run_id"]
    file.write_text(json.dumps(note))
    assert close_all(tmp_path / "run", "KILLED", reason="x", uri=uri, home=tmp_path) == 1
    assert mlflow_client(uri).get_run(run_id).info.status == "KILLED"


def test_nothing_is_created(tmp_path, uri):
    (tmp_path / "run").mkdir()
    assert close_all(tmp_path / "run", "FAILED", reason="x", uri=uri, home=tmp_path) == 0
    (tmp_path / "run" / "tracking.json").write_text(json.dumps({"key": "never", "experiment": "tests"}))
    assert close_all(tmp_path / "run", "FAILED", reason="x", uri=uri, home=tmp_path) == 0
    assert mlflow_client(uri).get_experiment_by_name("tests") is None


def test_a_tracker_that_is_away_costs_bounded_time_and_no_error(tmp_path):
    (tmp_path / "tracking.json").write_text(json.dumps({"key": "k", "run_id": "r", "experiment": "tests"}))
    address = f"http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "trainer.tracking_close", str(tmp_path), "FAILED", "--seconds", "20"],
        env=os.environ | {"MLFLOW_TRACKING_URI": address}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert time.monotonic() - begun < 100


def test_an_error_is_kept_beside_the_id_and_goes_with_the_next_attempt(tmp_path, uri):
    run_id = opened(tmp_path / "run", uri, tmp_path)
    note_error(tmp_path / "run", "TimeoutError: no answer")
    note = json.loads((tmp_path / "run" / "tracking.json").read_text())
    assert (note["run_id"], note["error"]) == (run_id, "TimeoutError: no answer")
    assert opened(tmp_path / "run", uri, tmp_path) == run_id
    assert "error" not in json.loads((tmp_path / "run" / "tracking.json").read_text())
    note_error(tmp_path / "run", None)
    assert json.loads((tmp_path / "run" / "tracking.json").read_text())["run_id"] == run_id


@pytest.mark.slow
def test_a_run_without_its_tracker_notes_why(tmp_path):
    document = {
        "data": {"name": "synthetic", "synthetic": {"nodes": 100, "features": 8, "active_features": 2}},
        "encoder": {"hidden": 4, "dim": 4}, "metric": {"hidden": 4}, "objective": {"inner_steps": 1},
        "optimiser": {"epochs": 1}, "run": {"export": False},
    }  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(document))
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainer", str(tmp_path / "spec.json"), "--out", str(tmp_path / "run")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "run" / "tracking.json").read_text())["error"]
