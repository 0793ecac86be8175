"""From a run's events.jsonl to rows of the store, a batch at a time (service.dispatch.telling says what is news)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.dispatch.lines import LineReader
from service.dispatch.progress import RunProgress, SweepProgress
from service.dispatch.telling import JournalTelling, RunTelling, parsed
from service.store.records import Event, Job, NewEvent

MAX_EVENTS = 500  # in one transaction


@dataclass(frozen=True)
class Batch:
    """What to record together: rows, and the columns that follow from them."""

    events: list[NewEvent]
    updates: dict[str, Any]
    more: bool  # whether the file has more that can be read now


class Relay:
    """Follows one job's file. After a batch that was not recorded for certain, make another Relay from the store.

    Args:
        job: as the store has it now.
        series: its epochs and rewinds (`store.events.series`).
        directory: of the run or sweep.
    """

    def __init__(self, job: Job, series: Iterable[Event], directory: Path):
        self._reader = LineReader(directory / "events.jsonl")
        self._waiting: list[bytes | None] = []  # lines read, and too many for the batch before
        self._has_more = False
        self._shown = (job.progress, job.metrics)  # what the job's row has
        self._telling: RunTelling | JournalTelling
        self._progress: RunProgress | SweepProgress
        if job.kind == "sweep":
            self._telling = JournalTelling.restored(job.relay)
            self._progress = SweepProgress(job.spec, job.progress, job.metrics)
        else:
            self._telling = RunTelling.restored(job.relay, series)
            self._progress = RunProgress(job.spec, job.progress, job.metrics)

    def next_batch(self) -> Batch:
        """The news since the last batch, at most about MAX_EVENTS; empty if there are none.

        Raises:
            OSError: the file cannot be read at the moment.
        """
        if not self._waiting:
            begins, self._waiting, self._has_more = self._reader.read()
            if begins:
                self._telling.begin()
                self._progress.begin()
        events: list[NewEvent] = []
        used = 0
        for line in self._waiting:
            if len(events) >= MAX_EVENTS:
                break
            used += 1
            event = parsed(line)
            events += self._telling.take(event)
            if event is not None:
                self._progress.take(event)
        del self._waiting[:used]
        more = bool(self._waiting) or self._has_more
        updates: dict[str, Any] = {"relay": self._telling.state()} if events else {}
        shown = (dict(self._progress.document), dict(self._progress.metrics))
        # Old lines that are read again would show an old state, until the last of them.
        if shown != self._shown and (events or not more):
            updates["progress"], updates["metrics"] = self._shown = shown
        return Batch(events, updates, more)

    def close(self) -> None:
        self._reader.close()
