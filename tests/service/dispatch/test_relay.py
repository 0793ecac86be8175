"""Each event of a job is stored once, whatever schedule of kills, resumes and restarts the processes went through."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.dispatch import relay as relaying
from service.dispatch.relay import Relay
from service.store.records import Event, Job, NewEvent
from tests.service.dispatch.test_retry_policy import JOB
from trainer.config import parse_spec
from trainer.files.journal import append, epoch_of, finite, fold, read_journal
from trainer.run.directory import RunDirectory

EPOCHS = 12
SWEEP = replace(JOB, kind="sweep", spec={"trials": 4})


class FakeRun:
    """A trainer at work in its run directory; a plan changes the numbers of later epochs."""

    def __init__(self, path: Path):
        self.run = RunDirectory.open(path, parse_spec({}), resume=True)
        self.epoch, self.saved, self.plan = 0, 0, 0
        self.plans: dict[int, int] = {}  # by which plan each epoch was trained

    def start(self) -> None:
        self.epoch = self.saved
        self.plans = {epoch: plan for epoch, plan in self.plans.items() if epoch <= self.epoch}
        self.run.rewind(self.epoch)
        self.run.record("resume" if self.epoch else "start", epoch=self.epoch)

    def train(self) -> None:
        if self.epoch == EPOCHS:
            self.run.record("phase", name="export", epoch=EPOCHS)
            self.run.record("end", epoch=EPOCHS)
            return
        self.epoch += 1
        self.run.record("step", epoch=self.epoch, step=1, steps=2, loss=0.1)
        self.plans[self.epoch] = self.plan
        self.run.record("epoch", epoch=self.epoch, metrics={"loss": loss(self.epoch, self.plan), "seconds": 1.0})

    def save(self) -> None:
        self.saved = self.epoch
        self.run.record("checkpoint", epoch=self.epoch, path=f"checkpoints/epoch-{self.epoch:07d}")

    def tear(self) -> None:
        with self.run.events.open("a") as file:
            file.write('{"type": "epo')


def loss(epoch: int, plan: int) -> float:
    return epoch / 7 + plan


class Rows:
    """The store: a transaction holds the events and the offset, or neither."""

    def __init__(self, job: Job = JOB) -> None:
        self.events: list[Event] = []
        self.job = job

    def record(self, new: list[NewEvent], updates: dict[str, Any]) -> None:
        for one in new:
            text = json.loads(json.dumps(one.data, allow_nan=False))
            self.events.append(Event("j", len(self.events) + 1, one.time or 0.0, one.type, one.epoch, text))
        self.job = replace(self.job, **json.loads(json.dumps(updates)))

    def epoch(self, number: int) -> Event | None:
        found = (event for event in reversed(self.events) if event.type == "epoch" and event.epoch == number)
        return next(found, None)

    def relay_of(self, directory: Path) -> Relay:
        return Relay(self.job, directory, self.epoch)

    def take(self, relay: Relay) -> None:
        """All that there is."""
        while True:
            batch = relay.next_batch()
            self.record(batch.events, batch.updates)
            if not batch.more:
                return

    def history(self) -> list[dict[str, Any]]:
        return [event.data for event in self.events]

    def curve(self) -> dict[int, float]:
        epochs = [event for event in fold(self.history()) if event["type"] == "epoch"]
        found = {event["epoch"]: event["metrics"]["loss"] for event in epochs}
        assert len(found) == len(epochs), "stored twice"
        return found


moves = st.lists(
    st.sampled_from(["train"] * 6 + ["save", "save", "kill", "tear", "shrink", "relay", "relay", "forget", "lost"]),
    max_size=80,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(moves=moves, at_once=st.integers(1, 20))
def test_stored_events_are_those_of_the_journal_each_once(tmp_path_factory, moves, at_once):
    """`kill`: the trainer dies and is started again. `shrink`: with another plan. `forget`: the dispatcher dies.

    `lost`: it dies, or its database does, between reading the file and committing.
    """
    directory = tmp_path_factory.mktemp("run")
    run, rows = FakeRun(directory), Rows()
    run.start()
    relay = rows.relay_of(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relaying, "MAX_EVENTS", at_once)
        for move in moves:
            match move:
                case "train":
                    run.train()
                case "save":
                    run.save()
                case "kill" | "tear" | "shrink":
                    if move == "tear":
                        run.tear()
                    run.plan += move == "shrink"
                    run.start()
                case "relay":
                    batch = relay.next_batch()
                    rows.record(batch.events, batch.updates)
                case "forget" | "lost":
                    if move == "lost":
                        relay.next_batch()
                    relay = rows.relay_of(directory)
        run.start()  # and now it comes to its end
        while run.epoch < EPOCHS:
            run.train()
        run.train()
        rows.take(relay)
    run.run.close()
    assert rows.history() == read_journal(run.run.events)
    assert rows.curve() == {epoch: loss(epoch, run.plans[epoch]) for epoch in range(1, EPOCHS + 1)}
    assert rows.events[-1].type == "end"
    assert rows.job.metrics["epoch"] == EPOCHS
    assert rows.job.progress["phase"] == "done"


@given(cut=st.lists(st.integers(0, 30), max_size=6))
def test_a_sweep_is_stored_line_by_line_once_and_its_trials_are_counted_through_restarts(tmp_path_factory, cut):
    directory, rows = tmp_path_factory.mktemp("sweep"), Rows(SWEEP)
    lines = [{"type": "trial", "number": n, "origin": "search", "changes": {}, "epoch": 7} for n in range(20)]
    written = 0
    for reach in [*sorted(cut), 30]:
        for line in lines[written:reach]:
            append(directory / "events.jsonl", line)
        written = max(written, min(reach, 20))
        rows.take(rows.relay_of(directory))
        assert rows.job.progress.get("started", 0) == written
    assert rows.history() == lines
    assert {event.epoch for event in rows.events} == {None}, "the epoch is the trial's, not the job's"


def test_nothing_new_is_nothing_to_record(tmp_path):
    rows = Rows()
    relay = rows.relay_of(tmp_path)
    assert relay.next_batch() == relaying.Batch([], {}, more=False)
    append(tmp_path / "events.jsonl", {"type": "start", "epoch": 0})
    rows.take(relay)
    size = (tmp_path / "events.jsonl").stat().st_size
    assert rows.job.relay == {"offset": size}
    for same in (relay, rows.relay_of(tmp_path)):
        assert same.next_batch() == relaying.Batch([], {}, more=False)


def test_a_line_that_is_no_event_is_passed_for_good(tmp_path):
    rows = Rows()
    (tmp_path / "events.jsonl").write_text("{]\n")
    rows.take(rows.relay_of(tmp_path))
    assert (rows.events, rows.job.relay) == ([], {"offset": 3})


def test_numbers_that_no_json_has_are_stored_as_none(tmp_path):
    rows = Rows()
    event = {"type": "epoch", "epoch": 1, "time": 1.0, "metrics": {"loss": float("nan"), "b": float("inf"), "c": 1e16}}
    append(tmp_path / "events.jsonl", event)
    rows.take(rows.relay_of(tmp_path))
    assert rows.history() == [finite(event)]
    assert rows.job.metrics == {"epoch": 1, "loss": None, "b": None, "c": 1e16}


@pytest.mark.parametrize("restarted", [False, True], ids=["same dispatcher", "another dispatcher"])
@pytest.mark.parametrize("regrown", [0, 2, EPOCHS])
def test_a_run_directory_that_was_wiped_or_restored_starts_over_with_a_rewind(tmp_path, restarted, regrown):
    rows, run = Rows(), FakeRun(tmp_path)
    run.start()
    for _ in range(5):
        run.train()
    relay = rows.relay_of(tmp_path)
    rows.take(relay)
    run.run.events.unlink()
    rows.take(relay)  # it is not there: nothing to tell yet
    again = FakeRun(tmp_path / "again")
    again.plan = 1
    again.start()
    for _ in range(regrown):
        again.train()
    again.run.events.rename(run.run.events)
    rows.take(rows.relay_of(tmp_path) if restarted else relay)
    assert [event.data["epoch"] for event in rows.events if event.type == "rewind"] == [0]
    assert rows.curve() == {epoch: loss(epoch, 1) for epoch in range(1, regrown + 1)}
    assert rows.job.progress["epoch"] == regrown
    assert rows.job.metrics.get("epoch", 0) == regrown
    assert rows.job.relay == {"offset": run.run.events.stat().st_size}


def test_what_an_earlier_version_stored_of_a_job_is_taken_back_and_told_again(tmp_path):
    rows, run = Rows(replace(JOB, relay={"mark": [2, 2, 0], "seen": []})), FakeRun(tmp_path)
    run.start()
    run.train()
    rows.take(rows.relay_of(tmp_path))
    assert [event.type for event in rows.events] == ["rewind", "start", "step", "epoch"]


@pytest.mark.parametrize("restarted", [False, True], ids=["same dispatcher", "another dispatcher"])
def test_after_a_rewind_the_row_shows_the_epoch_that_the_run_went_back_to(tmp_path, restarted):
    rows, run = Rows(), FakeRun(tmp_path)
    run.start()
    for epoch in range(1, 6):
        run.train()
        if epoch == 3:
            run.save()
    relay = rows.relay_of(tmp_path)
    if restarted:
        rows.take(relay)
        relay = rows.relay_of(tmp_path)
    run.start()
    rows.take(relay)
    assert rows.job.progress["epoch"] == 3
    assert rows.job.metrics == {"epoch": 3, "loss": loss(3, 0), "seconds": 1.0}
    assert [epoch_of(event.data) for event in rows.events if event.type == "rewind"] == [3]


@pytest.mark.parametrize("epoch", [None, "x", [1]])
def test_a_rewind_that_names_no_epoch_goes_back_to_the_beginning(tmp_path, epoch):
    rows = Rows()
    append(tmp_path / "events.jsonl", {"type": "rewind", "epoch": epoch})
    rows.take(rows.relay_of(tmp_path))
    assert [(event.epoch, event.data["epoch"]) for event in rows.events] == [(0, 0)]
