"""The tracker when MLflow is no help: down, silent, slow, without a home, or shared by processes that die."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.trainer.tracking.mlflow_server import free_port, mlflow_client, wait_until
from tests.trainer.tracking.runs import HandMadeRun
from trainer.tracking import Tracker, tracking_uri, ui_command
from trainer.tracking.mlflow_run import entity_name


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A server that accepts (the kernel does, in its backlog) and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_tracker_that_is_down_delays_metrics_and_not_training(tmp_path, caplog):
    path = tmp_path / "run"
    run = HandMadeRun(path)
    tracker = Tracker(uri=f"http://user:secret@127.0.0.1:{free_port()}", home=tmp_path)
    tracker.follow(path)
    run.epochs(1, 1_000)
    wait_until(lambda: tracker.summary()["error"] is not None, seconds=120)
    assert not caplog.records, "it may come back"
    assert tracker.is_alive
    run.end(1_000, accuracy=0.5)
    tracker.finish(240)
    summary = tracker.summary()
    assert summary == {**summary, "run_id": None, "sent": 0}
    assert "refused" in summary["error"]
    assert "within 240 s" not in summary["error"], "a refused connection is known at once"
    assert "secret" not in summary["error"] + caplog.text + (path / "tracking.json").read_text()
    assert [record.levelno for record in caplog.records if record.name == "trainer.tracking"] == [logging.WARNING]
    note = json.loads((path / "tracking.json").read_text())
    assert (note["error"], note.get("status")) == (summary["error"], None)

    later = Tracker(home=tmp_path)
    later.follow(path)
    later.finish(240)
    assert later.summary() == {**later.summary(), "error": None, "sent": 2_001}
    assert "error" not in json.loads((path / "tracking.json").read_text())
    history = mlflow_client(tracking_uri(tmp_path)).get_metric_history(later.summary()["run_id"], "loss")
    assert [point.step for point in history] == list(range(1, 1_001))


def test_server_that_never_answers_holds_the_end_only_for_the_timeout(black_hole, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "240")
    run = HandMadeRun(tmp_path / "run")
    tracker = Tracker(uri=black_hole, home=tmp_path)
    tracker.follow(tmp_path / "run")
    run.epochs(1, 1)
    began = time.monotonic()
    tracker.finish(1.0)
    assert 0.9 < time.monotonic() - began < 120  # MLflow alone would wait for 240 s a request
    assert tracker.summary()["sent"] == 0
    assert "within 1 s" in tracker.summary()["error"]


def test_home_that_cannot_be_used_is_reported_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    HandMadeRun(tmp_path / "run").end(1, accuracy=0.5)
    tracker = Tracker(home=tmp_path / "file")
    tracker.follow(tmp_path / "run")
    tracker.finish(240)
    assert "file" in tracker.summary()["error"]
    assert not tracker.is_alive


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from tests.trainer.tracking.runs import HandMadeRun
from trainer.tracking import Tracker
how, home, directory = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
run = HandMadeRun(directory)
tracker = Tracker(home=home)
tracker.follow(directory)
run.epochs(1, 6)
if how == "leaves":
    sys.exit(0)  # nobody says how the run ended, and MLflow is still being imported
if how == "killed":
    while tracker.summary()["sent"] < 12:
        time.sleep(0.05)
        if not tracker.is_alive:
            sys.exit(tracker.summary()["error"])
    os.kill(os.getpid(), signal.SIGKILL)
run.end(6)
tracker.finish(120)
sys.exit(tracker.summary()["error"] or 0)
"""


@pytest.mark.slow
def test_processes_share_a_new_database_leave_quietly_and_one_killed_resumes(tmp_path, repo_root):
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    processes = {}
    for how in ("killed", "ends", "leaves"):
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
    run = HandMadeRun(tmp_path / "killed", epoch=3)
    resumed = Tracker(home=home)
    resumed.follow(run.path)
    run.epochs(4, 8)
    run.end(8)
    resumed.finish(120)
    assert resumed.summary()["run_id"] == run_id
    history = mlflow_client(tracking_uri(home)).get_metric_history(run_id, "loss")
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
