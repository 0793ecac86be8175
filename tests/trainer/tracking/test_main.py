"""MLflow learns that a run is over whose trainer was killed; and if MLflow is away, nobody notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.tracking.mlflow_server import free_port, mlflow_client
from tests.trainer.tracking.runs import HandMadeRun
from trainer.tracking import Tracker
from trainer.tracking.__main__ import main


@pytest.fixture
def uri(tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("NML_HOME", str(tmp_path))
    return uri


def killed(path: Path) -> str:
    """A run as a trainer leaves it that was killed before MLflow knew of its last epochs."""
    run = HandMadeRun(path)
    run.epochs(1, 3)
    tracker = Tracker()
    tracker.follow(path)
    tracker.finish(240)
    run.epochs(4, 6)
    run.directory.close()
    return str(tracker.summary()["run_id"])


def note(path: Path) -> dict[str, str]:
    return json.loads((path / "tracking.json").read_text())


def test_a_killed_run_gets_its_last_epochs_and_is_closed_once(tmp_path, uri):
    run_id, client = killed(tmp_path / "run"), mlflow_client(uri)
    assert main([str(tmp_path / "run"), "--status", "FAILED", "--reason", "killed"]) == 0
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["error"]) == ("FAILED", "killed")
    assert [point.step for point in client.get_metric_history(run_id, "loss")] == [1, 2, 3, 4, 5, 6]
    assert note(tmp_path / "run")["status"] == "FAILED"
    assert main([str(tmp_path / "run"), "--status", "KILLED", "--reason", "again"]) == 0
    assert client.get_run(run_id).data.tags["error"] == "killed", "what is closed stays as it is"


def test_what_the_journal_says_of_the_end_counts_more_than_the_command_line(tmp_path, uri):
    run_id = killed(tmp_path / "run")
    HandMadeRun(tmp_path / "run", epoch=6).end(6)
    assert main([str(tmp_path / "run"), "--status", "FAILED"]) == 0
    assert mlflow_client(uri).get_run(run_id).info.status == note(tmp_path / "run")["status"] == "FINISHED"


def test_a_run_without_a_word_on_its_end_can_still_be_resumed(tmp_path, uri):
    run_id = killed(tmp_path / "run")
    assert main([str(tmp_path / "run")]) == 0
    assert mlflow_client(uri).get_run(run_id).info.status == "KILLED"
    assert "status" not in note(tmp_path / "run")


def test_a_run_whose_id_never_reached_the_note_is_found_by_its_key(tmp_path, uri):
    run_id = killed(tmp_path / "run")
    document = note(tmp_path / "run")
    del document["run_id"]
    (tmp_path / "run" / "tracking.json").write_text(json.dumps(document))
    assert main([str(tmp_path / "run"), "--status", "KILLED"]) == 0
    assert mlflow_client(uri).get_run(run_id).info.status == "KILLED"


def test_a_run_without_journal_is_closed_by_its_id(tmp_path, uri):
    run_id = killed(tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").unlink()
    assert main([str(tmp_path / "run"), "--status", "FAILED", "--reason", "lost"]) == 0
    run = mlflow_client(uri).get_run(run_id)
    assert (run.info.status, run.data.tags["error"]) == ("FAILED", "lost")


def test_nothing_is_created_for_what_was_not_tracked_or_never_began(tmp_path, uri):
    HandMadeRun(tmp_path / "untracked").end(1)
    assert main([str(tmp_path / "untracked"), "--status", "FAILED"]) == 0
    assert not (tmp_path / "untracked" / "tracking.json").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tracking.json").write_text(json.dumps({"key": "never", "experiment": "nml-gcl"}))
    assert main([str(tmp_path / "run"), "--status", "FAILED"]) == 0
    assert mlflow_client(uri).get_experiment_by_name("nml-gcl") is None


def test_a_tracker_that_is_away_costs_bounded_time_and_no_error(tmp_path):
    HandMadeRun(tmp_path).directory.close()
    (tmp_path / "tracking.json").write_text(json.dumps({"key": "k", "run_id": "r", "experiment": "tests"}))
    address = f"http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "trainer.tracking", str(tmp_path), "--status", "FAILED", "--seconds", "20"],
        env=os.environ | {"MLFLOW_TRACKING_URI": address}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert time.monotonic() - begun < 100
    assert note(tmp_path) == note(tmp_path) | {"key": "k", "run_id": "r"}
    assert note(tmp_path)["error"]
    assert "status" not in note(tmp_path)


@pytest.mark.slow
def test_a_run_without_its_tracker_notes_why(tmp_path):
    document = {
        "data": {"name": "synthetic", "synthetic": {"nodes": 100, "features": 8, "active_features": 2}},
        "encoder": {"hidden": 4, "dim": 4}, "method": {"inner_steps": 1, "metric": {"hidden": 4}},
        "optimiser": {"epochs": 1}, "run": {"export": False},
    }  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(document))
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainer", str(tmp_path / "spec.json"), "--out", str(tmp_path / "run")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "run" / "tracking.json").read_text())["error"]
