"""The journal (events.jsonl): the append-only event log of a run or a sweep, one JSON object a line.

One process appends; any number of readers follow, each at its own byte offset, and may store it to go on from there.
Nothing is ever rewritten. A resumed run appends {"type": "rewind", "epoch": e}: it takes back what was said of epochs
after e, and those epochs follow again. `fold` applies the rewinds.

    append(path, {"type": "epoch", "epoch": 1, "metrics": {…}})
    reader = JournalReader(path, offset)
    for event, offset in reader.read(): …

A crash may leave the last line without its newline. No reader sees that line, and the next `append` removes it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

MAX_LINE = 256_000  # bytes; an event has a few thousand at most
CHUNK = 1_000_000  # bytes read at once
REWIND = "rewind"

Event = dict[str, Any]


class Entry(NamedTuple):
    event: Event  # has a "type"
    offset: int  # of the byte after its line: where a reader that has seen it goes on


def append(path: Path, event: Event, *, durable: bool = False) -> None:
    """Write one line, by one call, after removing a last line that a crash cut off.

    Args:
        durable: return when it is on disk.

    Raises:
        OSError: the line was not written, or only in part.
    """
    line = memoryview(json.dumps(event).encode() + b"\n")
    with path.open("ab+", buffering=0) as file:  # closed each time: network file systems show it to others then
        _mend(file)
        while line:  # more than once only where the disk is full, which the second write reports
            line = line[file.write(line) :]
        if durable:
            os.fsync(file.fileno())


def mend(path: Path) -> None:
    """Remove a last line that a crash cut off, and create the file if there is none. For the writer alone."""
    with path.open("ab+", buffering=0) as file:
        _mend(file)


class JournalReader:
    """Reads the complete lines from an offset on. Lines that are too long or are no event are skipped.

    Where the file is not the one that `offset` was found in (it is shorter, or has no line that begins there: it was
    removed and written anew, or restored from a backup), a rewind to epoch 0 comes first, then all of its events.
    """

    def __init__(self, path: Path, offset: int = 0):
        self.path = path
        self.offset = offset  # of the first line not given yet
        self.at_end = False  # whether the last `read` came to the end of the file
        self._skipped = 0  # bytes read of a line that is too long and not complete yet

    def read(self, limit: int | None = None) -> list[Entry]:
        """The next events, at most `limit` and at most those of a chunk. Check `at_end` for whether there are more.

        Raises:
            OSError: the file is there but cannot be read.
        """
        entries: list[Entry] = []
        try:
            file = self.path.open("rb", buffering=0)
        except FileNotFoundError:
            self.at_end = True
            return entries
        with file:
            if self._is_other(file):
                self.offset = 0
                entries.append(Entry({"type": REWIND, "epoch": 0}, 0))
            start = self.offset + self._skipped
            file.seek(start)
            data = file.read(CHUNK)
        at = 0
        while (newline := data.find(b"\n", at)) >= 0 and (limit is None or len(entries) < limit):
            event = None if self._skipped else parsed(data[at:newline])
            at = newline + 1
            self.offset, self._skipped = start + at, 0
            if event is not None:
                entries.append(Entry(event, self.offset))
        if newline < 0 and (self._skipped or len(data) - at > MAX_LINE):
            self._skipped += len(data) - at
        self.at_end = newline < 0 and len(data) < CHUNK
        return entries

    def new_events(self) -> Iterator[Event]:
        """All events from the offset to the end of the file, read chunk by chunk."""
        self.at_end = False
        while not self.at_end:
            for entry in self.read():
                yield entry.event

    def _is_other(self, file: FileIO) -> bool:
        size = file.seek(0, os.SEEK_END)
        if size < self.offset + self._skipped:
            self._skipped = 0  # of a line that was cut off and is removed
        if size < self.offset:
            return True
        file.seek(max(0, self.offset - 1))
        return self.offset > 0 and file.read(1) != b"\n"


def read_journal(path: Path) -> list[Event]:
    """All events, with the rewinds among them; none if there is no file."""
    return list(JournalReader(path).new_events())


def end_offset(path: Path) -> int:
    """Where a reader begins that wants only what is appended from now on."""
    try:
        with path.open("rb", buffering=0) as file:
            return _end_of_lines(file)
    except FileNotFoundError:
        return 0


def fold(events: Iterable[Event]) -> list[Event]:
    """What holds of a sequence of events, in order: without rewinds and what they took back."""
    held: list[Event] = []
    for event in events:
        if event["type"] == REWIND:
            held = [earlier for earlier in held if epoch_of(earlier) <= epoch_of(event)]
        else:
            held.append(event)
    return held


def epoch_of(event: Event) -> int:
    """The epoch an event belongs to; 0 for those before the first, or of none."""
    epoch = event.get("epoch")
    return epoch if isinstance(epoch, int) else 0


def finite(value: Any) -> Any:
    """The same document with None for NaN and infinities, which are no JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list) else value


def parsed(line: bytes) -> Event | None:
    """The event in a line; None if there is none, or it is too long."""
    try:
        event = json.loads(line) if len(line) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("type"), str) else None


def _mend(file: FileIO) -> None:
    if (end := _end_of_lines(file)) < file.seek(0, os.SEEK_END):
        file.truncate(end)


def _end_of_lines(file: FileIO) -> int:
    """The offset after the last newline."""
    end, window = file.seek(0, os.SEEK_END), 1  # mostly it is the last byte
    while end:
        start = max(0, end - window)
        file.seek(start)
        if (newline := file.read(end - start).rfind(b"\n")) >= 0:
            return start + newline + 1
        end, window = start, MAX_LINE
    return 0
