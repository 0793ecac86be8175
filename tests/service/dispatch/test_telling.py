"""Each thing that happened to a run is told once, whatever schedule of kills, rewinds and restarts it went through."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.dispatch.relay import Relay
from service.dispatch.telling import JournalTelling, RunTelling, fingerprint, parsed, place_of
from service.store.records import Event, NewEvent
from tests.service.dispatch.test_retry_policy import JOB

EPOCHS = 12


class FakeRun:
    """A trainer's file: appends, rewinds to its newest checkpoint; a plan changes the numbers of later epochs."""

    def __init__(self, path: Path):
        self.path, self.epoch, self.saved, self.plan, self.clock = path, 0, 0, 0, 1.0
        self.plans: dict[int, int] = {}  # by which plan each epoch on file was trained

    def record(self, kind: str, **fields: Any) -> None:
        self.clock += 0.001
        line = json.dumps({"type": kind, "time": round(self.clock, 3), **fields})
        with self.path.open("a") as file:
            file.write(line + "\n")

    def start(self) -> None:
        self.epoch = self.saved
        self.plans = {epoch: plan for epoch, plan in self.plans.items() if epoch <= self.epoch}
        kept = []
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                if (event := parsed(line.encode())) is None:
                    break
                if event.get("epoch", 0) <= self.epoch:
                    kept.append(line + "\n")
        temporary = self.path.with_name("tmp")
        temporary.write_text("".join(kept))
        os.replace(temporary, self.path)
        self.record("resume" if self.epoch else "start", epoch=self.epoch)

    def train(self) -> None:
        if self.epoch == EPOCHS:
            self.record("phase", name="export", epoch=EPOCHS)
            self.record("end", epoch=EPOCHS)
            return
        self.epoch += 1
        self.record("step", epoch=self.epoch, step=1, steps=2, loss=0.1)
        self.plans[self.epoch] = self.plan
        metrics = {"loss": loss(self.epoch, self.plan), "seconds": self.clock, "rss_mb": self.clock}
        self.record("epoch", epoch=self.epoch, metrics=metrics)

    def save(self) -> None:
        self.saved = self.epoch
        self.record("checkpoint", epoch=self.epoch, path=f"checkpoints/epoch-{self.epoch:07d}")

    def tear(self) -> None:
        with self.path.open("a") as file:
            file.write('{"type": "epo')


def loss(epoch: int, plan: int) -> float:
    return epoch / 7 + plan


class Rows:
    """The store: a transaction holds the events and the mark, or neither."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.relay: dict[str, Any] = {}

    def record(self, new: list[NewEvent], relay: dict[str, Any] | None) -> None:
        for one in new:
            text = json.loads(json.dumps(one.data))
            self.events.append(Event("j", len(self.events) + 1, one.time or 0.0, one.type, one.epoch, text))
        if relay is not None:
            self.relay = json.loads(json.dumps(relay))

    def relay_of(self, directory: Path) -> Relay:
        from dataclasses import replace

        series = [event for event in self.events if event.type in ("epoch", "rewind")]
        return Relay(replace(JOB, relay=self.relay), series, directory)

    def curve(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for event in self.events:
            if event.type == "rewind":
                found = {epoch: value for epoch, value in found.items() if epoch <= event.data["epoch"]}
            elif event.type == "epoch":
                assert event.epoch not in found, "told twice"
                found[event.epoch] = event.data["metrics"]["loss"]
        return found


moves = st.lists(
    st.sampled_from(["train"] * 6 + ["save", "save", "kill", "tear", "shrink", "relay", "relay", "forget", "lost"]),
    max_size=80,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(moves=moves)
def test_stored_epochs_are_the_uninterrupted_curve_each_once(tmp_path_factory, moves):
    """`kill`: the trainer dies and is started again. `shrink`: with another plan. `forget`: the dispatcher dies.

    `lost`: it dies, or its database does, between reading the file and committing.
    """
    directory = tmp_path_factory.mktemp("run")
    run, rows = FakeRun(directory / "events.jsonl"), Rows()
    run.start()
    relay = rows.relay_of(directory)
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
                rows.record(batch.events, batch.updates.get("relay"))
            case "forget" | "lost":
                if move == "lost":
                    relay.next_batch()
                relay.close()
                relay = rows.relay_of(directory)
    run.start()  # and now it comes to its end
    while run.epoch < EPOCHS:
        run.train()
    run.train()
    while (batch := relay.next_batch()).events or batch.more:
        rows.record(batch.events, batch.updates.get("relay"))
    relay.close()
    assert rows.curve() == {epoch: loss(epoch, run.plans[epoch]) for epoch in range(1, EPOCHS + 1)}
    if run.plan == 0:
        assert not [event for event in rows.events if event.type == "rewind"]
        told = [(event.type, event.epoch) for event in rows.events if event.type not in ("start", "resume")]
        assert len(told) == len(set(told)), "told twice"
    assert "end" in [event.type for event in rows.events]
    starts = [event.data["time"] for event in rows.events if event.type in ("start", "resume")]
    assert len(starts) == len(set(starts))


@given(cut=st.lists(st.integers(0, 30), max_size=6))
def test_a_journal_is_told_line_by_line_once(cut):
    lines = [{"type": "report", "number": n, "time": float(n)} for n in range(20)]
    rows, state = [], {}
    for reach in [*sorted(cut), 30]:
        telling = JournalTelling.restored(state)
        telling.begin()
        for line in lines[:reach]:
            rows += telling.take(line)
        state = json.loads(json.dumps(telling.state()))
    assert [row.data["number"] for row in rows] == list(range(20))


def test_a_line_that_is_no_event_keeps_its_place_in_the_journal():
    telling = JournalTelling()
    assert not telling.take(None)
    assert telling.take({"type": "trial"})
    assert telling.state() == {"lines": 2}


def test_places_grow_in_the_order_of_a_run():
    step = "checkpoints/epoch-0000004-step-000000020"
    told = [
        {"type": "step", "epoch": 5, "step": 10}, {"type": "step", "epoch": 5, "step": 20},
        {"type": "checkpoint", "epoch": 4, "path": step}, {"type": "step", "epoch": 5, "step": 30},
        {"type": "watching", "epoch": 5, "done": 1}, {"type": "watching", "epoch": 5, "done": 2},
        {"type": "epoch", "epoch": 5}, {"type": "checkpoint", "epoch": 5, "path": "checkpoints/epoch-0000005"},
        {"type": "phase", "epoch": 5, "name": "export"}, {"type": "exported", "epoch": 5, "done": 7},
        {"type": "phase", "epoch": 5, "name": "evaluate"}, {"type": "phase", "epoch": 5, "name": "figures"},
        {"type": "end", "epoch": 5},
    ]  # fmt: skip
    places = [place_of(event) for event in told]
    assert places == sorted(set(places))


def test_numbers_that_no_json_has_are_stored_as_none_and_known_again():
    line = b'{"type": "epoch", "epoch": 1, "time": 1.0, "metrics": {"loss": NaN, "b": Infinity, "c": 1e16}}'
    telling = RunTelling()
    (first,) = telling.take(parsed(line))
    assert first.data["metrics"] == {"loss": None, "b": None, "c": 1e16}
    json.dumps(first.data, allow_nan=False)
    stored = Event("j", 1, 1.0, "epoch", 1, {**first.data, "metrics": {"loss": None, "b": None, "c": 10**16}})
    assert RunTelling.restored(telling.state(), [stored]).take(parsed(line)) == []


def test_time_and_memory_do_not_make_an_epoch_another_one():
    one = {"metrics": {"loss": 0.5, "seconds": 1.0, "rss_mb": 7.0}}
    assert fingerprint(one) == fingerprint({"metrics": {"loss": 0.5, "seconds": 9.0}})
    assert fingerprint(one) != fingerprint({"metrics": {"loss": 0.5000001, "seconds": 1.0, "rss_mb": 7.0}})


def test_many_starts_are_remembered_in_bounded_room():
    telling = RunTelling()
    starts = [{"type": "resume", "epoch": 0, "time": float(n)} for n in range(500)]
    assert sum(len(telling.take(event)) for event in starts) == 500
    assert sum(len(telling.take(event)) for event in starts) == 0
    assert len(json.dumps(telling.state())) < 3_000
