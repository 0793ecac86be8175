"""The tracker when MLflow is no help: down, silent, slow, without a home, or shared by processes that die."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.mlflow_server import free_port
from trainer.callbacks import Result, RunInfo
from trainer.config import TrainSpec
from trainer.errors import Cancelled, InvalidInput
from trainer.tracking import Tracker, tracking_uri, ui_command
from trainer.tracking_run import entity_name


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A server that accepts (the kernel does, in its backlog) and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def run_info(directory: Path, first_epoch: int = 1) -> RunInfo:
    directory.mkdir(exist_ok=True)
    return RunInfo(directory, TrainSpec(), "0" * 64, 100, 400, first_epoch, {})


def epoch(number: int) -> dict[str, Any]:
    return {"epoch": number, "metrics": {"loss": 1 / number, "kl": 0.1 * number}}


def result(directory: Path, epochs: int, **metrics: Any) -> Result:
    return Result(directory, metrics, directory / "embeddings" / "vectors.npy", epochs)


def test_tracker_that_is_down_costs_metrics_not_training(tmp_path, caplog):
    tracker = Tracker(uri=f"http://user:secret@127.0.0.1:{free_port()}", home=tmp_path, finish_timeout=240)
    tracker.on_start(run_info(tmp_path))
    for number in range(1, 1001):
        tracker.on_epoch(epoch(number))
    assert tracker.summary()["error"] is None, "training was as slow as giving up"
    tracker.on_end(result(tmp_path, 1000, accuracy=0.5))
    summary = tracker.summary()
    assert summary == {**summary, "enabled": False, "run_id": None, "dropped": 2001, "sent": 0}
    assert "refused" in summary["error"]
    assert "within 240 s" not in summary["error"], "a refused connection is known at once"
    assert "secret" not in summary["error"] + caplog.text
    assert len([record for record in caplog.records if record.name == "trainer.tracking"]) == 1

    tracker.on_epoch(epoch(1001))  # a switched-off tracker still counts
    assert tracker.summary()["dropped"] == 2003


def test_server_that_never_answers_holds_the_end_only_for_the_timeout(black_hole, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "240")
    tracker = Tracker(uri=black_hole, home=tmp_path, finish_timeout=1.0)
    tracker.on_start(run_info(tmp_path))
    tracker.on_epoch(epoch(1))
    began = time.monotonic()
    tracker.on_end(result(tmp_path, 1))
    assert 0.9 < time.monotonic() - began < 120  # MLflow alone would wait for 240 s a request
    assert tracker.summary()["dropped"] == 2
    assert "within 1 s" in tracker.summary()["error"]


def test_full_queue_drops_whole_epochs_and_counts_their_points(black_hole, tmp_path):
    tracker = Tracker(uri=black_hole, home=tmp_path, finish_timeout=0.1, capacity=5)
    tracker.on_start(run_info(tmp_path))
    for number in range(1, 11):
        tracker.on_epoch(epoch(number))
    assert tracker.summary()["dropped"] == 16  # two epochs of two points fit into five places
    tracker.on_failure(Cancelled("stopped"))
    assert tracker.summary()["dropped"] == 20


def test_home_that_cannot_be_used_is_reported_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    tracker = Tracker(home=tmp_path / "file")
    tracker.on_start(run_info(tmp_path / "run"))
    tracker.on_end(result(tmp_path / "run", 1, accuracy=0.5))
    assert tracker.summary()["dropped"] == 1
    assert "file" in tracker.summary()["error"]


def test_failure_before_the_start_is_no_business_of_the_tracker(tmp_path):
    tracker = Tracker(home=tmp_path)
    tracker.on_failure(InvalidInput("no such file"))
    assert tracker.summary() == {
        "enabled": True, "run_id": None, "experiment": None, "error": None, "dropped": 0, "sent": 0,
    }  # fmt: skip


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from trainer.callbacks import Result, RunInfo
from trainer.config import TrainSpec
from trainer.tracking import Tracker
how, home, directory = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
tracker = Tracker(home=home)
tracker.on_start(RunInfo(directory, TrainSpec(), "0" * 64, 1, 1, 1, {}))
for epoch in range(1, 7):
    tracker.on_epoch({"epoch": epoch, "metrics": {"loss": 1 / epoch, "kl": 0.1}})
if how == "leaves":
    sys.exit(0)  # nobody says how the run ended, and MLflow is still being imported
if how == "killed":
    while tracker.summary()["sent"] < 12:
        time.sleep(0.05)
        if tracker.summary()["error"]:
            sys.exit(tracker.summary()["error"])
    os.kill(os.getpid(), signal.SIGKILL)
tracker.on_end(Result(directory, {}, directory, 6))
sys.exit(tracker.summary()["error"] or 0)
"""


@pytest.mark.slow
def test_processes_share_a_new_database_leave_quietly_and_one_killed_resumes(tmp_path, repo_root):
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    processes = {}
    for how in ("killed", "ends", "leaves"):
        (tmp_path / how).mkdir()
        processes[how] = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, how, str(home), str(tmp_path / how)],
            cwd=here,
            env=os.environ | {"PYTHONPATH": str(repo_root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    output = {how: process.communicate(timeout=240)[0] for how, process in processes.items()}
    assert {how: process.returncode for how, process in processes.items()} == {
        "killed": -signal.SIGKILL, "ends": 0, "leaves": 0,
    }, output  # fmt: skip
    assert output["killed"] == output["ends"] == "", "MLflow is quiet"
    assert "Fatal" not in output["leaves"]
    assert list(here.iterdir()) == [], "nothing is left in the current directory"

    run_id = json.loads((tmp_path / "killed" / "tracking.json").read_text())["run_id"]
    resumed = Tracker(home=home)
    resumed.on_start(run_info(tmp_path / "killed", first_epoch=4))
    for number in range(4, 9):
        resumed.on_epoch(epoch(number))
    resumed.on_end(result(tmp_path / "killed", 8))
    assert resumed.summary()["run_id"] == run_id
    from mlflow import MlflowClient

    history = MlflowClient(tracking_uri(home)).get_metric_history(run_id, "loss")
    assert [point.step for point in history] == list(range(1, 9))


@pytest.mark.parametrize(
    "key", ["eval.probe", "τ", "a:b", "../x", "..", "...x", "/a//b/", ".", "", "n@5 (%)", "k" * 300]
)
def test_any_name_becomes_one_mlflow_accepts(key):
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(entity_name(key))
    assert len(entity_name(key)) <= 250


def test_tracker_is_chosen_by_environment_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("NML_HOME", str(tmp_path))
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    assert ui_command(tmp_path / "a b") == f"mlflow ui --backend-store-uri 'sqlite:///{tmp_path}/a b/mlflow.db'"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@tracker.example")
    assert tracking_uri(tmp_path) == "https://me:secret@tracker.example"
    assert ui_command() == "open https://***@tracker.example"
