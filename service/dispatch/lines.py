"""Reads the lines of a file that another process appends to, or replaces by a shorter one, at any moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

MAX_LINE = 256_000  # bytes; an event has a few thousand at most
CHUNK = 1_000_000  # bytes read at once, so that one talkative run does not keep others waiting


class LineReader:
    """Gives the complete lines from the beginning of the file on, and again from there after it was replaced."""

    def __init__(self, path: Path):
        self._path = path
        self._file: IO[bytes] | None = None  # kept open, so that a file that replaces it cannot get its inode
        self._offset = 0  # of the first line not given yet
        self._skipping = False  # the rest of a line that is too long

    def read(self) -> tuple[bool, list[bytes | None], bool]:
        """Whether lines are now given from the beginning; some lines, None for one too long; whether there are more.

        Raises:
            OSError: the file is there but cannot be read.
        """
        begins = self._file is None or self._was_replaced()
        if begins and not self._open():
            return False, [], False
        assert self._file is not None
        self._file.seek(self._offset)
        data = self._file.read(CHUNK)
        *complete, rest = data.split(b"\n")
        self._offset += len(data) - len(rest)
        lines: list[bytes | None] = [line if len(line) <= MAX_LINE else None for line in complete]
        if lines and self._skipping:
            lines[0], self._skipping = None, False
        if len(rest) > MAX_LINE or (self._skipping and rest):
            self._offset, self._skipping = self._offset + len(rest), True
        return begins, lines, len(data) == CHUNK

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        self.close()
        try:
            self._file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return False
        self._offset, self._skipping = 0, False
        return True

    def _was_replaced(self) -> bool:
        assert self._file is not None
        try:
            present = os.stat(self._path)
        except FileNotFoundError:
            return False
        try:
            opened = os.fstat(self._file.fileno())
        except OSError:  # a network file system has forgotten it
            return True
        if (present.st_dev, present.st_ino) != (opened.st_dev, opened.st_ino):
            return True
        return present.st_size < self._offset
