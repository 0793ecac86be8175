"""How much disk the whole tables that were asked for as Parquet may take: anyone who may read can ask for any of them.

Together they stay within a bound, and leave the disk what must be free. What was not downloaded for longest makes
room, but never what is being downloaded: its readers hold a shared lock on it. A file that is being made has its
expected size from the start (a hole where nothing is written yet), so that whoever makes another meanwhile counts it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from service.embeddings.layout import DOWNLOAD, ids_file
from service.embeddings.table import Table

WORK = f".{DOWNLOAD}.tmp"  # beside a version's files, while it is made
_LOCK = ".parquet.lock"
_FULL = "the disk is too full to make this file; npy and ids are there already"
_BLOCK = 512  # bytes; what st_blocks counts


class NoRoom(OSError):
    """The disk, or what it may hold of such files, is full. The message is for clients."""

    def __init__(self, message: str):
        super().__init__(errno.ENOSPC, message)
        self.message = message


class TooManyInUse(NoRoom):
    """It would fit, if others were not being downloaded or made."""


@dataclass(frozen=True)
class ParquetRoom:
    """Bounds for all versions of a home."""

    most_bytes: int
    min_free: int

    def reserve(self, table: Table, work: Path) -> None:
        """Make room for the table's file, and give the empty file `work` the size that it is expected to have.

        Raises:
            NoRoom: there is none.
            OSError: the folder cannot be read.
        """
        need = expected_bytes(table)
        if need > self.most_bytes:
            raise NoRoom(
                f"as Parquet this table takes about {need:,} bytes, and NML_PARQUET_BYTES allows "
                f"{self.most_bytes:,}; download npy and ids instead"
            )
        parent = table.directory.parent
        with _locked(parent / _LOCK):
            making = [_size(path) for path in parent.glob(f"*/{WORK}") if path != work and not _remove(path)]
            made = sorted(((found, path) for path in parent.glob(f"*/{DOWNLOAD}") if (found := _stat(path))), key=_age)
            taken = sum(size for size, _ in making) + sum(found.st_size for found, _ in made)
            free = shutil.disk_usage(parent).free - sum(size - written for size, written in making)
            if free + sum(_BLOCK * found.st_blocks for found, _ in made) - need < self.min_free:
                raise NoRoom(_FULL)  # even if all of them made room
            for found, path in made:
                if taken + need <= self.most_bytes and free - need >= self.min_free:
                    break
                if _remove(path):
                    taken -= found.st_size
                    free += _BLOCK * found.st_blocks
            if free - need < self.min_free:
                raise NoRoom(_FULL)
            if taken + need > self.most_bytes:
                raise TooManyInUse("too many tables are being downloaded as Parquet; try again later, or download npy")
            os.truncate(work, need)


def expected_bytes(table: Table) -> int:
    """About what download.parquet takes, rather more than less."""
    info = table.info
    ids = os.stat(table.directory / ids_file(info)).st_size
    return info.rows * (4 * info.dim + 24) + ids + info.rows * info.dim // 20 + (1 << 16)


def hold(descriptor: int) -> bool:
    """Keep an open file from being removed until it is closed; false: it was removed before."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    found = os.fstat(descriptor)
    os.utime(descriptor, ns=(time.time_ns(), found.st_mtime_ns))  # the time of the last download
    return found.st_nlink > 0


def _age(entry: tuple[os.stat_result, Path]) -> int:
    return entry[0].st_atime_ns


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # its version was deleted in this moment
        return None


def _size(path: Path) -> tuple[int, int]:
    """Of a file being made: what it will take, and what it takes already."""
    found = _stat(path)
    return (0, 0) if found is None else (found.st_size, min(found.st_size, _BLOCK * found.st_blocks))


def _remove(path: Path) -> bool:
    """Unless somebody reads or writes it; whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return True
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """For moments only; the system frees it if we die."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
