"""Runs told without training: nested in a parent, closed without waiting, and noted as ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.mlflow_server import free_port, mlflow_client, wait_until
from trainer.tracking import tracking_uri
from trainer.tracking_run import About, ended_as
from trainer.tracking_thread import BackgroundRun

pytestmark = pytest.mark.timeout(600)
SECONDS = 240.0  # for what takes a few: MLflow's import and its tables, on whatever disk


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for the module: creating MLflow's schema takes seconds."""
    return tmp_path_factory.mktemp("home")


def about(directory: Path, parent: Callable[[], str | None] | None = None) -> About:
    return About(directory, "nested", directory.name, {"a": {"b": 1}, "c.d": "x"}, {"kind": "test"}, parent)


def test_child_waits_for_a_parent_that_comes_late(home, tmp_path):
    uri = tracking_uri(home)
    parent, child = BackgroundRun(uri=uri, home=home), BackgroundRun(uri=uri, home=home)
    child.begin(about(tmp_path / "new" / "child", lambda: parent.summary()["run_id"]))
    child.log({"loss": 0.5}, 1)
    child.close("FINISHED", metrics={"final": 2}, step=3)
    time.sleep(0.6)  # some looks at a parent that has not begun
    assert child.summary() == {**child.summary(), "run_id": None, "error": None, "enabled": True}
    assert not child.is_over
    parent.begin(about(tmp_path))
    parent.close("FINISHED", wait=SECONDS)
    child.join(SECONDS)

    assert child.summary() == {**child.summary(), "error": None, "sent": 2, "dropped": 0}
    run = mlflow_client(uri).get_run(child.summary()["run_id"])
    assert run.data.tags == {
        **run.data.tags, "mlflow.parentRunId": parent.summary()["run_id"], "kind": "test",
    }  # fmt: skip
    assert (run.info.run_name, run.info.status) == ("child", "FINISHED")
    assert run.data.params == {"a.b": "1", "c.d": "x"}
    assert run.data.metrics == {"loss": 0.5, "final": 2.0}


def test_child_of_a_parent_that_never_comes_gives_up_without_asking_the_server(home, tmp_path):
    def lost() -> str | None:
        raise RuntimeError("no parent")

    warnings: list[str] = []
    child = BackgroundRun(uri=tracking_uri(home), home=home, warn=warnings.append)
    child.begin(about(tmp_path / "child", lost))
    wait_until(lambda: child.is_over, seconds=SECONDS)
    assert "no parent" in child.summary()["error"]
    assert len(warnings) == 1
    assert not (tmp_path / "child").exists()


def test_only_a_run_that_is_over_for_good_is_noted_as_ended(home, tmp_path):
    def run_once(status: str, *, final: bool) -> str:
        run = BackgroundRun(uri=tracking_uri(home), home=home)
        run.begin(about(tmp_path))
        wait_until(lambda: run.summary()["run_id"] is not None, seconds=SECONDS)
        assert ended_as(tmp_path) is None, "it goes on"
        run.close(status, final=final, wait=SECONDS)
        assert run.summary()["error"] is None
        return str(run.summary()["run_id"])

    assert ended_as(tmp_path) is None
    first = run_once("KILLED", final=False)
    assert ended_as(tmp_path) is None
    assert run_once("FAILED", final=True) == first
    assert ended_as(tmp_path) == "FAILED"
    assert run_once("FINISHED", final=True) == first
    assert ended_as(tmp_path) == "FINISHED"


def test_times_of_points_are_those_given(home, tmp_path):
    run = BackgroundRun(uri=tracking_uri(home), home=home)
    run.begin(about(tmp_path))
    run.log({"loss": 1}, 1, at=1_700_000_000.1234)
    run.close("FINISHED", wait=SECONDS)
    history = mlflow_client(tracking_uri(home)).get_metric_history(run.summary()["run_id"], "loss")
    assert [point.timestamp for point in history] == [1_700_000_000_123]


def test_closing_without_waiting_keeps_points_for_a_tracker_that_comes_back(tmp_path):
    run = BackgroundRun(uri=f"http://127.0.0.1:{free_port()}", home=tmp_path)
    run.begin(about(tmp_path))
    run.log({"loss": 1}, 1)
    run.close("FINISHED")
    wait_until(lambda: (tmp_path / "tracking.json").exists(), seconds=SECONDS)
    time.sleep(1)  # a refused connection or two
    assert run.summary() == {**run.summary(), "enabled": True, "dropped": 0}
    assert run.backlog == 1
    run.join(SECONDS)  # now someone waits, and a tracker that never answered is not worth it
    assert run.summary() == {**run.summary(), "enabled": False, "dropped": 1}
    assert "refused" in run.summary()["error"]
    assert ended_as(tmp_path) is None


def test_run_that_is_switched_off_ends_its_thread(home, tmp_path):
    run = BackgroundRun(uri=tracking_uri(home), home=home, warn=lambda message: None)
    run.begin(about(tmp_path))
    wait_until(lambda: run.summary()["run_id"] is not None, seconds=SECONDS)
    run.switch_off(RuntimeError("enough"))
    wait_until(lambda: run.is_over, seconds=SECONDS)
    run.log({"loss": 1}, 1)
    assert run.summary() == {**run.summary(), "enabled": False, "dropped": 1, "error": "RuntimeError: enough"}
