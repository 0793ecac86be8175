"""Sweeps in a real MLflow, as a SQLite file and as a server: what arrives, once, whatever ends or begins in between.

The sweeps are written by hand, as the driver and its trials would: a journal, and run directories with their epochs.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tracking.mlflow_server import Server, free_port, mlflow_client, wait_until
from tests.tuner.sweeps import small_sweep
from trainer.run.directory import RunDirectory
from trainer.tracking import Tracker, tracking_uri
from trainer.tracking.__main__ import main
from trainer.tracking.mlflow_run import MlflowRun
from trainer.tracking.source import flatten
from tuner.config import SweepSpec, sweep_hash, trial_spec
from tuner.journal import Journal, run_directory, trial_directory

pytestmark = pytest.mark.timeout(600)
SECONDS = 240.0  # for what takes one or two on an idle machine


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for the module: creating MLflow's schema takes seconds."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


def sweep_spec(name: str, **fields: Any) -> SweepSpec:
    return small_sweep(base={"run": {"experiment": name, "seed": 7}}, **fields)


class HandMade:
    """A sweep whose driver and trials are the test."""

    def __init__(self, path: Path, spec: SweepSpec, tracker: Tracker | None, *, resume: bool = False) -> None:
        self.path, self.spec, self.tracker = path, spec, tracker
        self.journal = Journal.open(path, spec)
        kind = "resume" if resume else "start"
        space = {path: dimension.model_dump(mode="json") for path, dimension in spec.dimensions().items()}
        self.journal.record(
            kind, spec_hash=sweep_hash(spec), objective=spec.objective, nodes=200, edges=600, space=space
        )
        if tracker is not None:
            tracker.follow(path)

    def trial(self, number: int, temperature: float = 0.5) -> None:
        changes = {"method.temperature": temperature}
        self.journal.record("trial", number=number, origin="search", changes=changes)
        self.running(number)

    def running(self, number: int) -> None:
        self.journal.record("running", number=number, host="here", pid=1)

    def epochs(self, number: int, first: int, last: int, run: int = 0) -> None:
        """Train, as far as files tell, and report on the last epoch."""
        trained = trial_spec(self.spec, self.journal.trials[number].changes, run)
        directory = RunDirectory.open(run_directory(self.path, number, trained.run.seed), trained, resume=True)
        directory.rewind(first - 1)
        directory.record("start" if first == 1 else "resume", epoch=first - 1)
        for epoch in range(first, last + 1):
            directory.record("epoch", epoch=epoch, metrics={"loss": loss(number, run, epoch), "seconds": 0.1})
        directory.close()
        self.journal.record(
            "report", number=number, run=run, epoch=last, value=last / 100 + run, figures={}, seconds=0.1 * last,
            decision="continue",
        )  # fmt: skip

    def done(self, number: int, state: str, value: float | None, epoch: int, error: str | None = None) -> None:
        self.journal.record(
            "done", number=number, state=state, value=value, values=[], epoch=epoch, seconds=0.1 * epoch, error=error
        )  # fmt: skip

    def end(self, *, timeout: float = SECONDS, **event: Any) -> None:
        if event:
            self.journal.record("end", **event)
        self.journal.close()
        if self.tracker is not None:
            self.tracker.finish(timeout)


def loss(number: int, run: int, epoch: int) -> float:
    return 10 * number + run + 1 / epoch


def whole_sweep(
    path: Path, spec: SweepSpec, tracker: Tracker | None, before_end: Callable[[], None] = lambda: None
) -> None:
    """Four trials with two seeds each, one for each way in which a trial ends."""
    sweep = HandMade(path, spec, tracker)
    (path / "figures").mkdir()
    (path / "figures" / "a.png").write_bytes(b"a picture")
    for number in range(4):
        sweep.trial(number, temperature=0.3 + 0.1 * number)
    for number in range(3):
        sweep.epochs(number, 1, 3)
    sweep.done(1, "stopped", 0.03, 3)
    sweep.done(2, "failed", None, 3, error="NonFinite: see https://me:secret@example.org/")
    sweep.epochs(0, 4, 8)
    sweep.epochs(0, 1, 8, run=1)
    sweep.done(0, "finished", 0.58, 8)
    sweep.done(3, "ended", None, 0)
    before_end()
    sweep.end(state="succeeded", best=0, value=0.58)


def nested(client: Any, parent: str) -> dict[str, Any]:
    """The runs of a sweep's trials by name, as MLflow has them."""
    run = client.get_run(parent)
    found = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
    runs = {child.info.run_name: client.get_run(child.info.run_id) for child in found}
    assert len(runs) == len(found), "two runs for one trial"
    return runs


def points(client: Any, run: Any) -> dict[str, list[tuple[int, float, int]]]:
    return {
        key: [(point.step, point.value, point.timestamp) for point in client.get_metric_history(run.info.run_id, key)]
        for key in run.data.metrics
    }


def steps(client: Any, run: Any, key: str) -> list[int]:
    return [step for step, _, _ in points(client, run)[key]]


def tracker_threads() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate() if thread.name == "mlflow-tracker"}


def check_whole_sweep(spec: SweepSpec, uri: str, tracker: Tracker) -> None:
    summary, client = tracker.summary(), mlflow_client(uri)
    assert summary == {**summary, "error": None}
    parent = client.get_run(summary["run_id"])
    assert parent.info.status == "FINISHED"
    assert parent.data.tags == {
        **parent.data.tags, "sweep_hash": sweep_hash(spec), "dataset": "synthetic", "best_trial": "0",
        "state": "succeeded",
    }  # fmt: skip
    params = parent.data.params
    assert (params["algorithm"], params["base.optimiser.epochs"], params["graph.num_nodes"]) == ("tpe", "8", "200")
    assert json.loads(params["space.method.temperature"]) == {"kind": "uniform", "low": 0.2, "high": 1}
    curve = points(client, parent)
    assert [(step, value) for step, value, _ in curve["best_objective"]] == [(3, 0.58), (4, 0.58)]
    assert [(step, value) for step, value, _ in curve["trials_failed"]] == [(1, 0), (2, 1), (3, 1), (4, 1)]
    assert {item.path for item in client.list_artifacts(summary["run_id"])} == {"spec.json", "figures"}
    assert [item.path for item in client.list_artifacts(summary["run_id"], "figures")] == ["figures/a.png"]

    trials = nested(client, summary["run_id"])
    assert {name: (run.info.status, run.data.tags["state"]) for name, run in trials.items()} == {
        "trial-0000": ("FINISHED", "finished"), "trial-0001": ("FINISHED", "stopped"),
        "trial-0002": ("FAILED", "failed"), "trial-0003": ("KILLED", "ended"),
    }  # fmt: skip
    first = trials["trial-0000"]
    trained = trial_spec(spec, {"method.temperature": 0.3})
    assert set(first.data.params) == set(flatten(trained.model_dump(mode="json")))
    assert (first.data.params["method.temperature"], first.data.params["run.seed"]) == ("0.3", "7")
    assert first.data.tags == {**first.data.tags, "sweep_hash": sweep_hash(spec), "trial": "0", "origin": "search"}
    curves = {name: [(step, value) for step, value, _ in curve] for name, curve in points(client, first).items()}
    assert curves == {
        "loss": [(epoch, loss(0, 0, epoch)) for epoch in range(1, 9)],
        "seed_8/loss": [(epoch, loss(0, 1, epoch)) for epoch in range(1, 9)],
        "seconds": [(epoch, 0.1) for epoch in range(1, 9)],
        "seed_8/seconds": [(epoch, 0.1) for epoch in range(1, 9)],
        "objective": [(3, 0.03), (8, 0.08), (9, 0.58)],
        "seed_8/objective": [(8, 1.08)],
        "trial_seconds": [(8, 0.8)],
        "trial_epochs": [(8, 8.0)],
    }
    assert first.data.metrics["objective"] == 0.58, "the mean over seeds is what MLflow sorts by"
    assert trials["trial-0002"].data.tags["error"] == "NonFinite: see https://***@example.org/"
    assert steps(client, trials["trial-0001"], "objective") == [3], "one seed: its last report is the value"


def test_sweep_is_a_run_with_one_nested_run_per_trial_and_telling_it_again_adds_nothing(home, tmp_path):
    spec, uri = sweep_spec("whole", seeds=2), tracking_uri(home)
    tracker = Tracker(home=home)
    whole_sweep(tmp_path, spec, tracker)
    check_whole_sweep(spec, uri, tracker)

    client, parent = mlflow_client(uri), tracker.summary()["run_id"]

    def everything() -> dict[str, Any]:
        runs = nested(client, parent)
        assert len(client.search_runs([runs["trial-0000"].info.experiment_id])) == 1 + len(runs)
        trials = {name: [run.to_dictionary(), points(client, run)] for name, run in runs.items()}
        trials["trial-0003"][0]["info"].pop("end_time")  # it was cut off, and would go on if there were more time
        return trials | {"parent": points(client, client.get_run(parent))}

    before = everything()
    for _ in range(2):
        again = Tracker(home=home)
        again.follow(tmp_path)
        again.finish(SECONDS)
        assert again.summary() == {**tracker.summary(), "sent": 0}
        assert client.get_run(parent).info.status == "FINISHED"
    assert everything() == before, "trials that were told are not touched, not even their end time"


@pytest.mark.slow
def test_server_that_answers_only_after_the_last_trial_gets_everything(server, tmp_path):
    spec, path = sweep_spec("late", seeds=2), tmp_path / "sweep"
    tracker = Tracker(uri=server.uri, home=tmp_path)

    def answer() -> None:
        assert tracker.summary()["run_id"] is None
        server.go_on()
        wait_until(lambda: tracker.summary()["run_id"] is not None, seconds=SECONDS)

    server.pause()
    whole_sweep(path, spec, tracker, before_end=answer)
    check_whole_sweep(spec, server.uri, tracker)


def test_cancelled_sweep_resumes_as_the_same_runs_without_repeated_steps(home, tmp_path):
    spec, client = sweep_spec("cancelled"), mlflow_client(tracking_uri(home))
    tracker = Tracker(home=home)
    sweep = HandMade(tmp_path, spec, tracker)
    sweep.trial(0)
    sweep.trial(1)
    sweep.epochs(0, 1, 8)
    sweep.done(0, "finished", 0.08, 8)
    sweep.epochs(1, 1, 5)
    sweep.journal.record("trial", number=2, origin="search", changes={})  # it never ran
    sweep.journal.record("cancelled")
    sweep.end()
    parent, runs = tracker.summary()["run_id"], nested(client, tracker.summary()["run_id"])
    assert (client.get_run(parent).info.status, client.get_run(parent).data.tags["state"]) == ("KILLED", "cancelled")
    assert "error" in client.get_run(parent).data.tags
    assert {name: (run.info.status, run.data.tags["state"]) for name, run in runs.items()} == {
        "trial-0000": ("FINISHED", "finished"), "trial-0001": ("KILLED", "waiting"),
    }  # fmt: skip

    resumed = Tracker(home=home)
    sweep = HandMade(tmp_path, spec, resumed, resume=True)
    sweep.running(1)
    sweep.running(2)
    wait_until(lambda: nested(client, parent)["trial-0001"].info.status == "RUNNING", seconds=SECONDS)
    assert client.get_run(parent).info.status == "RUNNING"
    assert "error" not in client.get_run(parent).data.tags
    sweep.epochs(1, 4, 8)  # from the checkpoint after epoch 3
    sweep.done(1, "finished", 0.08, 8)
    sweep.epochs(2, 1, 2)
    sweep.done(2, "stopped", 0.02, 2)
    sweep.end(state="succeeded", best=0, value=0.08)
    assert resumed.summary() == {**resumed.summary(), "run_id": parent, "error": None}
    assert client.get_run(parent).info.status == "FINISHED"
    trials = nested(client, parent)
    assert {name: run.info.run_id for name, run in trials.items()} == {
        **{name: run.info.run_id for name, run in runs.items()}, "trial-0002": trials["trial-0002"].info.run_id,
    }  # fmt: skip
    assert steps(client, trials["trial-0001"], "loss") == list(range(1, 9))
    assert steps(client, trials["trial-0001"], "objective") == [5, 8]
    assert steps(client, client.get_run(parent), "best_objective") == [1, 2, 3]


def test_trials_done_while_the_tracker_was_down_are_told_by_a_resumed_sweep(home, tmp_path, caplog):
    spec = sweep_spec("caught up")
    down = f"http://me:secret@127.0.0.1:{free_port()}"
    tracker = Tracker(uri=down, home=tmp_path / "other")
    others = tracker_threads()
    sweep = HandMade(tmp_path, spec, tracker)
    for number in range(20):
        sweep.trial(number)
        sweep.epochs(number, 1, 3)
        sweep.done(number, "finished", 0.03, 3)
    assert len(tracker_threads() - others) == 1, "one thread for the sweep and all its trials"
    sweep.end()
    summary = tracker.summary()
    assert summary == {**summary, "run_id": None, "sent": 0}
    assert "refused" in summary["error"]
    assert "secret" not in summary["error"] + caplog.text
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    wait_until(lambda: tracker_threads() <= others, seconds=SECONDS)
    assert not list(trial_directory(tmp_path, 0).glob("tracking.json*"))

    resumed = Tracker(home=home)
    HandMade(tmp_path, spec, resumed, resume=True).end(state="succeeded", best=0, value=0.03)
    summary = resumed.summary()
    assert summary["error"] is None
    client = mlflow_client(tracking_uri(home))
    trials = nested(client, summary["run_id"])
    assert len(trials) == 20
    assert {run.info.status for run in trials.values()} == {"FINISHED"}
    assert {tuple(steps(client, run, "loss")) for run in trials.values()} == {(1, 2, 3)}


def test_killed_sweep_is_closed_with_its_trials_and_those_that_are_done_stay(home, tmp_path, monkeypatch):
    monkeypatch.setenv("NML_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    spec, client = sweep_spec("killed"), mlflow_client(tracking_uri(home))
    tracker = Tracker()
    sweep = HandMade(tmp_path, spec, tracker)
    for number in range(3):
        sweep.trial(number)
        sweep.epochs(number, 1, 3)
    sweep.done(0, "finished", 0.03, 3)
    wait_until(lambda: tracker.summary()["sent"] >= 26, seconds=SECONDS)
    tracker.finish(0)  # from here on MLflow learns nothing
    wait_until(lambda: not tracker.is_alive, seconds=SECONDS)
    sweep.epochs(1, 4, 8)
    sweep.done(1, "finished", 0.08, 8)
    sweep.epochs(2, 4, 5)
    sweep.journal.close()

    assert main([str(tmp_path), "--status", "FAILED", "--reason", "out of luck"]) == 0
    parent = json.loads((tmp_path / "tracking.json").read_text())
    assert (client.get_run(parent["run_id"]).info.status, parent["status"]) == ("FAILED", "FAILED")
    trials = nested(client, parent["run_id"])
    assert {name: run.info.status for name, run in trials.items()} == {
        "trial-0000": "FINISHED", "trial-0001": "FINISHED", "trial-0002": "FAILED",
    }  # fmt: skip
    assert trials["trial-0002"].data.tags["error"] == "out of luck"
    assert steps(client, trials["trial-0001"], "loss") == list(range(1, 9))
    assert steps(client, trials["trial-0002"], "loss") == list(range(1, 6))


def test_trial_that_mlflow_refuses_costs_only_itself(home, tmp_path, caplog, monkeypatch):
    opened = MlflowRun.opened.__func__

    def refusing(cls: type, server: Any, directory: Path, *rest: Any, **options: Any) -> Any:
        if directory == trial_directory(tmp_path, 1):
            raise ValueError("not this one")
        return opened(cls, server, directory, *rest, **options)

    monkeypatch.setattr(MlflowRun, "opened", classmethod(refusing))
    tracker = Tracker(home=home)
    sweep = HandMade(tmp_path, sweep_spec("refused"), tracker)
    for number in range(3):
        sweep.trial(number)
        sweep.epochs(number, 1, 3)
        sweep.done(number, "finished", 0.03, 3)
    sweep.end(state="succeeded", best=0, value=0.03)
    assert "not this one" in tracker.summary()["error"]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    client = mlflow_client(tracking_uri(home))
    assert client.get_run(tracker.summary()["run_id"]).info.status == "FINISHED"
    assert set(nested(client, tracker.summary()["run_id"])) == {"trial-0000", "trial-0002"}


def test_home_that_cannot_be_used_costs_trials_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    path, spec = tmp_path / "sweep", sweep_spec("off")
    tracker = Tracker(home=tmp_path / "file")
    sweep = HandMade(path, spec, tracker)
    wait_until(lambda: not tracker.is_alive, seconds=SECONDS)
    for number in range(3):
        sweep.trial(number)
        sweep.epochs(number, 1, 3)
        sweep.done(number, "finished", 0.03, 3)
    sweep.end(state="succeeded", best=0, value=0.03)
    assert not list(trial_directory(path, 0).glob("tracking.json*"))
    assert "file" in tracker.summary()["error"]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_server_that_never_answers_holds_the_end_only_for_the_timeout(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "240")
    spec = sweep_spec("silent")
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tracker = Tracker(uri=uri, home=tmp_path)
        sweep = HandMade(tmp_path, spec, tracker)
        for number in range(3):
            sweep.trial(number)
            sweep.epochs(number, 1, 3)
        began = time.monotonic()
        sweep.end(timeout=1.0)
        assert 0.9 < time.monotonic() - began < 120  # MLflow alone would wait for 240 s a request
    assert "within 1 s" in tracker.summary()["error"]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_event_that_cannot_be_told_is_no_failure_of_the_sweep(tmp_path, home, caplog):
    tracker = Tracker(home=home)
    sweep = HandMade(tmp_path, sweep_spec("odd"), tracker)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"type": "trial"}) + "\n")
    sweep.end()
    assert "KeyError" in tracker.summary()["error"]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
