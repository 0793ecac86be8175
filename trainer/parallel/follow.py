"""Reads events.jsonl while another process writes it."""

from __future__ import annotations

import json
import os
import zlib
from array import array
from pathlib import Path
from typing import IO, Any


class Follower:
    """Gives each event once, also when a restarted trainer rewinds the file and writes its last epochs again.

    What is in the file at the start counts as seen. A rewind replaces the file by one that begins with some of the
    lines of the old; the lines after those are new, even if they speak of an epoch that was seen before.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file: IO[bytes] | None = None  # kept open, so that a file that replaces it cannot get its inode
        self._rest = b""  # of a line that is not complete yet
        self._seen = array("I")  # a checksum for each line so far: a few bytes, where a long run has many lines
        self._position = 0  # in the present file, in lines
        self.new_events()

    def new_events(self) -> list[dict[str, Any]]:
        """Events that were completed since the last call, oldest first."""
        if self._was_replaced():
            self.close()
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return []
            self._rest, self._position = b"", 0
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [event for line in lines if self._is_new(line) and (event := _parsed(line)) is not None]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _was_replaced(self) -> bool:
        if self._file is None:
            return False
        try:
            present = os.stat(self._path)
        except FileNotFoundError:
            return False
        opened = os.fstat(self._file.fileno())
        return (present.st_dev, present.st_ino) != (opened.st_dev, opened.st_ino)

    def _is_new(self, line: bytes) -> bool:
        checksum, at = zlib.crc32(line), self._position
        self._position += 1
        if at < len(self._seen) and self._seen[at] == checksum:
            return False
        del self._seen[at:]  # from here on the file tells another story
        self._seen.append(checksum)
        return True


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:  # a line that a crash cut off and the next one joined
        return None
    return event if isinstance(event, dict) else None
