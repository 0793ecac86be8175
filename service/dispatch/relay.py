"""From a job's journal (trainer.files.journal) to rows of the store, a batch at a time.

The job's row holds the offset up to which the journal is stored, written in the same transaction as the events: whoever
is killed when, each event is stored once. What a resumed run takes back it says itself, by a rewind event.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.dispatch.progress import RunProgress, SweepProgress
from service.store.records import Event, Job, NewEvent
from trainer.files.journal import REWIND, JournalReader, epoch_of, finite

MAX_EVENTS = 500  # in one transaction


@dataclass(frozen=True)
class Batch:
    """What to record together: rows, and the columns that follow from them."""

    events: list[NewEvent]
    updates: dict[str, Any]
    more: bool  # whether the journal has more that can be read now


class Relay:
    """Follows one job's journal. After a batch that was not recorded for certain, make another Relay from the store.

    Args:
        job: as the store has it now.
        directory: of the run or sweep.
        stored_epoch: the newest epoch event with that number in the store (`store.events.epoch`).
    """

    def __init__(self, job: Job, directory: Path, stored_epoch: Callable[[int], Event | None]):
        # An earlier version stored something else than an offset: no file is as long as that, so all is read again.
        self._stored = job.relay.get("offset", sys.maxsize) if job.relay else 0
        self._reader = JournalReader(directory / "events.jsonl", self._stored)
        self._stored_epoch = stored_epoch
        self._shown = (job.progress, job.metrics)  # what the job's row has
        self._progress: RunProgress | SweepProgress
        if job.kind == "sweep":
            self._progress = SweepProgress(job.spec, job.progress, job.metrics)
        else:
            self._progress = RunProgress(job.spec, job.progress, job.metrics)
        self._is_caught_up = job.kind != "sweep" or not self._stored

    def next_batch(self) -> Batch:
        """What was appended since the last batch, at most MAX_EVENTS; empty if there is nothing.

        Raises:
            OSError: the journal cannot be read at the moment.
        """
        if not self._is_caught_up:
            self._catch_up()
        events: list[NewEvent] = []
        for entry in self._reader.read(MAX_EVENTS):
            event = finite(entry.event)
            if event["type"] == REWIND:
                event["epoch"] = epoch_of(event)
                self._progress.rewind(event["epoch"], self._metrics(event["epoch"], events))
            else:
                self._progress.update(event)
            events.append(self._row(event))
        updates: dict[str, Any] = {}
        if self._reader.offset != self._stored:
            self._stored = self._reader.offset
            updates["relay"] = {"offset": self._stored}
        shown = (dict(self._progress.document), dict(self._progress.metrics))
        if shown != self._shown:
            updates["progress"], updates["metrics"] = self._shown = shown
        return Batch(events, updates, more=not self._reader.at_end)

    def _catch_up(self) -> None:
        """Let the progress of a sweep know of all trials: its document alone does not tell them."""
        past = JournalReader(self._reader.path)
        while past.offset < self._stored and not past.at_end:
            for entry in past.read():
                if entry.offset <= self._stored:
                    self._progress.update(finite(entry.event))
        self._is_caught_up = True

    def _metrics(self, epoch: int, batch: list[NewEvent]) -> dict[str, Any]:
        """Of an epoch that a rewind goes back to; none if it is not known."""
        fresh = (event.data for event in reversed(batch) if event.type == "epoch" and event.epoch == epoch)
        data = next(fresh, None)
        if data is None:
            stored = self._stored_epoch(epoch) if epoch else None
            data = {} if stored is None else stored.data
        metrics = data.get("metrics")
        return metrics if isinstance(metrics, dict) else {}

    def _row(self, event: dict[str, Any]) -> NewEvent:
        """In a sweep an epoch is one of a trial's, not the job's, and so is not the row's."""
        epoch = event.get("epoch") if isinstance(self._progress, RunProgress) else None
        time = event.get("time")
        return NewEvent(
            event["type"][:32], event, epoch=epoch if isinstance(epoch, int) else None,
            time=float(time) if isinstance(time, int | float) else None,
        )  # fmt: skip
