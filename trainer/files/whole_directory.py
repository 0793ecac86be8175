"""A directory that appears whole or not at all, whatever dies while it is written.

It is filled under a hidden name beside its place, made durable and renamed. Who writes to a place that others may write
to as well takes `sole_writer` first; it also clears away what a killed writer left.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
    token = secrets.token_hex(6)
    partial, aside = (place.with_name(f".{place.name}.{token}{ending}") for ending in ("", ".old"))
    partial.mkdir()
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
        if place.exists():
            shutil.rmtree(aside, ignore_errors=True)


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
