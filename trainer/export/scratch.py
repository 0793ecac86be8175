"""Tables that outlive the process filling them: memory-mapped .npy files in a hidden folder, and how far they are.

Order of writing: rows, fsync of their table, and only then progress.json by rename. Progress therefore never claims
rows that a kill or a power cut could lose; rows beyond it are written again.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.files.atomic import sync, write_json
from trainer.files.mapped import take

_PROGRESS = "progress.json"


@dataclass(frozen=True)
class Table:
    """Rows that may lie in a file far larger than memory, and how to give back the pages that reading mapped."""

    rows: Tensor  # [n, width], never written to
    release: Callable[[], None]

    def take(self, at: Tensor, touch: int, out: Tensor | None = None) -> Tensor:
        """A copy of the rows at these ascending positions, see `take`.  [n] -> [n, width]."""
        return take(self.rows, at, self.release, touch, out)


def create_table(path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """An .npy file of zeros that takes no room on the disk until rows are written."""
    kind = np.dtype(str(dtype).removeprefix("torch."))
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + shape[0] * shape[1] * kind.itemsize)
        os.fsync(file.fileno())
    sync(path.parent)


def open_table(path: Path) -> Table:
    """Map a table for reading."""
    with path.open("rb") as file:
        shape, kind, offset = _header(file)
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        rows = torch.frombuffer(mapped, dtype=getattr(torch, kind.name), offset=offset).reshape(shape)
    return Table(rows, lambda: mapped.madvise(mmap.MADV_DONTNEED))


def write_rows(path: Path, first: int, rows: np.ndarray) -> None:
    """Put rows [n, width] at positions first, first + 1, ... and return when the disk has them."""
    with path.open("r+b") as file:
        _, kind, offset = _header(file)
        file.seek(offset + first * rows.shape[1] * kind.itemsize)
        file.write(np.ascontiguousarray(rows, dtype=kind).data)
        file.flush()
        os.fsync(file.fileno())


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    np.lib.format.read_magic(file)
    shape, _, kind = np.lib.format.read_array_header_1_0(file)
    return shape, kind, file.tell()


class Scratch:
    """The hidden folder beside `target`: a table per sweep, and how many rows of which sweep are safe on disk.

    Work found there goes on if it has the same `key` (JSON: whatever the result depends on), else it is thrown away.
    """

    def __init__(self, target: Path, key: dict[str, Any]):
        self.target, self.key = target, key
        self.path = scratch_folder(target)
        self.sweep, self.rows, self.published = 0, 0, False
        if not self._goes_on():
            self.sweep, self.rows, self.published = 0, 0, False
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True, exist_ok=True)
            self.commit(0, 0)

    def table(self, sweep: int) -> Path:
        """Where the rows of a sweep are; the target gets those of the last one."""
        return self.path / f"sweep-{sweep}.npy"

    def commit(self, sweep: int, rows: int) -> None:
        """Vouch for all tables before `sweep` and for its first `rows` rows; tables no longer read are removed."""
        self._record(sweep, rows, None)
        for old in range(sweep - 1):
            self.table(old).unlink(missing_ok=True)

    def publish(self) -> None:
        """Rename the last finished table to the target. Renaming keeps size and mtime: a later look recognises it."""
        result = self.table(self.sweep - 1)
        self._record(self.sweep, 0, _identity(result))
        os.replace(result, self.target)
        sync(self.target.parent)
        self.published = True

    def _record(self, sweep: int, rows: int, result: list[int] | None) -> None:
        write_json(self.path / _PROGRESS, {"key": self.key, "sweep": sweep, "rows": rows, "result": result})
        self.sweep, self.rows = sweep, rows

    def _goes_on(self) -> bool:
        try:
            state = json.loads((self.path / _PROGRESS).read_text(encoding="utf-8"))
            if state["key"] != self.key:
                return False
            self.sweep, self.rows = int(state["sweep"]), int(state["rows"])
            self.published = state["result"] is not None and _identity(self.target) == state["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        read = [self.sweep - 1] * (self.sweep > 0) + [self.sweep] * (self.rows > 0)
        return self.published or all(self.table(sweep).exists() for sweep in read)


def scratch_folder(target: Path) -> Path:
    return target.with_name(f".{target.name}.scratch")


def discard_scratch(target: Path) -> None:
    """Remove the folder; work in it cannot go on after that."""
    shutil.rmtree(scratch_folder(target), ignore_errors=True)


def _identity(path: Path) -> list[int] | None:
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.exists() else None
