"""Which lines of a run's events.jsonl are news: each thing that happened is told once, whoever is killed when.

A trainer that is started again takes its file back to the newest checkpoint and writes the epochs after it anew. So a
line is not known by its place in the file but by its place in the run, (epoch, what, how far), which only grows; a mark
remembers the highest place told. It is stored in the same transaction as the events: after any crash the file is read
from its beginning, and what lies at or below the mark is passed over.

An epoch below the mark is compared with what was told of it. A resumed run repeats it to the bit, and it is passed
over. If its numbers differ, the run went on with another plan: a `rewind` event takes back what was told from there on,
and the mark goes back with it. What has no place in the run (start, resume, cancelled) is known by its time.

Pure: no files, no database.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from service.store.records import Event, NewEvent

Place = tuple[int, int, int]
_PHASES = {"export": 4, "evaluate": 6, "figures": 7}
_OF_THE_MACHINE = frozenset({"seconds", "rss_mb"})  # figures that no two executions share
_REMEMBERED = 64  # starts and stops known by name; older ones by being older
_NOWHERE: Place = (-1, 0, 0)


@dataclass
class RunTelling:
    """What has been told of a training run."""

    mark: Place = _NOWHERE
    seen: list[tuple[float, str]] = field(default_factory=list)  # time and type of what has no place
    epochs: dict[int, bytes] = field(default_factory=dict)  # fingerprints of those told and not taken back

    @classmethod
    def restored(cls, state: dict[str, Any], series: Iterable[Event]) -> RunTelling:
        """As it was when `state` was stored, with the epochs and rewinds that the store has."""
        if not state:
            return cls()
        epoch, what, far = state["mark"]
        telling = cls((epoch, what, far), [(float(time), str(kind)) for time, kind in state["seen"]])
        for event in series:
            if event.type == "rewind":
                telling._forget_after(int(event.data["epoch"]))
            elif event.epoch is not None:
                telling.epochs[event.epoch] = fingerprint(event.data)
        return telling

    def state(self) -> dict[str, Any]:
        """For the job's row."""
        return {"mark": list(self.mark), "seen": [list(one) for one in self.seen]}

    def begin(self) -> None:
        """The first line of the file comes next; places do not depend on that."""

    def take(self, event: dict[str, Any] | None) -> list[NewEvent]:
        """The news in a line, none or one, or two with a rewind before it; None: a line that is no event."""
        if event is None:
            return []
        place, kind = place_of(event), str(event.get("type", ""))
        if place is None:
            return [_new(kind, event)] if self._is_unseen(kind, event.get("time")) else []
        if place > self.mark:
            self.mark = place
            if kind == "epoch":
                self.epochs[place[0]] = fingerprint(event)
            return [_new(kind, event)]
        if kind != "epoch" or self.epochs.get(place[0]) == fingerprint(event):
            return []
        before = place[0] - 1
        self._forget_after(before)
        self.mark, self.epochs[place[0]] = place, fingerprint(event)
        return [NewEvent("rewind", {"epoch": before}, epoch=before), _new(kind, event)]

    def _forget_after(self, epoch: int) -> None:
        self.epochs = {number: value for number, value in self.epochs.items() if number <= epoch}

    def _is_unseen(self, kind: str, time: Any) -> bool:
        if not isinstance(time, int | float):
            return False  # nothing by which to know it again
        key = (float(time), kind)
        is_older = len(self.seen) == _REMEMBERED and key < self.seen[0]
        if key in self.seen or is_older:
            return False
        self.seen = sorted([*self.seen, key])[-_REMEMBERED:]
        return True


@dataclass
class JournalTelling:
    """What has been told of a sweep: its journal only grows, so the number of lines says it all."""

    told: int = 0
    _at: int = 0  # lines read since the beginning

    @classmethod
    def restored(cls, state: dict[str, Any]) -> JournalTelling:
        return cls(int(state.get("lines", 0)))

    def state(self) -> dict[str, Any]:
        return {"lines": self.told}

    def begin(self) -> None:
        self._at = 0

    def take(self, event: dict[str, Any] | None) -> list[NewEvent]:
        """As RunTelling's. The epoch is the trial's, not the job's, and so is not the event's."""
        self._at += 1
        if self._at <= self.told:
            return []
        self.told = self._at
        return [] if event is None else [NewEvent(str(event.get("type", ""))[:32], event, time=_time(event))]


def place_of(event: dict[str, Any]) -> Place | None:
    """Where in the run an event belongs: epoch, what of it, how far; None for what may happen anywhere."""
    epoch = event.get("epoch")
    if not isinstance(epoch, int):
        return None
    match event:
        case {"type": "step", "step": int(step)}:
            return epoch, 0, 2 * step
        case {"type": "checkpoint", "path": str(path)} if found := re.search(r"-step-(\d+)$", path):
            return epoch + 1, 0, 2 * int(found[1]) + 1  # within the next epoch, after that step
        case {"type": "watching", "done": int(done)}:
            return epoch, 1, done
        case {"type": "epoch"}:
            return epoch, 2, 0
        case {"type": "checkpoint"}:
            return epoch, 3, 0
        case {"type": "phase", "name": str(name)} if name in _PHASES:
            return epoch, _PHASES[name], 0
        case {"type": "exported", "done": int(done)}:
            return epoch, 5, done
        case {"type": "end"}:
            return epoch, 8, 0
    return None


def fingerprint(event: dict[str, Any]) -> bytes:
    """Equal for epochs with the same numbers, whatever they took in time and memory."""
    metrics = event.get("metrics")
    known = metrics if isinstance(metrics, dict) else {}
    kept = {name: _number(value) for name, value in known.items() if name not in _OF_THE_MACHINE}
    return blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=8).digest()


def parsed(line: bytes | None) -> dict[str, Any] | None:
    """The event in a line, fit for any JSON reader; None for what a crash cut off, or is too long."""
    try:
        event = None if line is None else json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _finite(event) if isinstance(event, dict) else None


def _finite(value: Any) -> Any:
    """NaN and infinities are no JSON: none in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value


def _number(value: Any) -> Any:
    """A number as any database gives it back: 1e16 may return as an integer, -0.0 as 0.0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) + 0.0 if is_number else value


def _new(kind: str, event: dict[str, Any]) -> NewEvent:
    epoch = event.get("epoch")
    return NewEvent(kind[:32], event, epoch=epoch if isinstance(epoch, int) else None, time=_time(event))


def _time(event: dict[str, Any]) -> float | None:
    time = event.get("time")
    return float(time) if isinstance(time, int | float) else None
