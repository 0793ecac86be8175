"""A directory that appears whole or not at all, whatever dies while it is written.

It is filled under a hidden name beside its place, made durable and renamed. Meanwhile its writer holds a lock on it,
which the system drops when the process dies: so the next writer of the same place can remove what a killed one left.
Who must not write at the same time as another takes `sole_writer` first.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from trainer.errors import Infrastructure
from trainer.files.atomic import sync


@contextmanager
def whole_directory(place: Path, *, replace: bool = False) -> Iterator[Path]:
    """A new directory to fill; it takes its place if the block ends well and is gone otherwise.

    Replacing moves the old one aside first: readers that have it mapped keep it, new ones find the new.

    Raises:
        FileExistsError: there already is something at `place`, and `replace` is false.
    """
    _refuse_existing(place, replace)
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(place)
    partial, lock = _new_partial(place)
    aside = partial.with_name(f"{partial.name}.old")
    try:
        yield partial
        _sync_files(partial)
        _refuse_existing(place, replace)  # another process may have been faster
        if place.exists():
            os.rename(place, aside)
        try:
            os.rename(partial, place)
        except OSError:
            if aside.exists():
                os.rename(aside, place)
            _refuse_existing(place, replace)
            raise
        sync(place.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)
        if place.exists():
            shutil.rmtree(aside, ignore_errors=True)


def _new_partial(place: Path) -> tuple[Path, int]:
    """A new directory, and the descriptor that holds its lock."""
    while True:
        partial = place.with_name(f".{place.name}.{secrets.token_hex(6)}")
        partial.mkdir()
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a network file system that locks no directories: then nobody else gets this lock
            fcntl.flock(lock, fcntl.LOCK_EX)
        if partial.exists():
            return partial, lock
        os.close(lock)  # another writer took it for abandoned before it was locked


def _remove_abandoned(place: Path) -> None:
    """Remove what killed writers of `place` left; those still at work hold a lock on theirs."""
    ours = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{12}}")
    for path in [entry for entry in place.parent.iterdir() if ours.fullmatch(entry.name)]:
        with suppress(OSError):  # gone, or locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def sole_writer(place: Path) -> Iterator[None]:
    """Hold the right to write `place` and remove what earlier holders left unfinished. The system frees it if we die.

    Raises:
        Infrastructure: another process holds it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place.with_name(f".{place.name}.lock"), timeout=0):
            _clear_leftovers(place)
            yield
    except Timeout as error:
        raise Infrastructure(
            f"{place} is being written by another process. Wait for it, or use another name."
        ) from error


def _clear_leftovers(place: Path) -> None:
    """Only under the lock: then nobody else is still filling these."""
    ours = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{12}}(\.old)?")
    for entry in place.parent.iterdir():
        match = ours.fullmatch(entry.name)
        if match and match[1] and not place.exists():  # killed between moving the old aside and the new in
            os.rename(entry, place)
        elif match:
            shutil.rmtree(entry, ignore_errors=True)


def _refuse_existing(place: Path, replace: bool) -> None:
    if place.exists() and not replace:
        raise FileExistsError(f"{place} already exists")


def _sync_files(directory: Path) -> None:
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync(directory)
