"""One .npy file that is written as its rows arrive, by someone who does not know how many will come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from trainer.files.mapped import pieces


class NpyWriter:
    """A file for an array of shape [rows appended so far, *row_shape]; valid once closed.

    numpy pads the header so that the count of rows can grow in place; it is written again at the end.
    """

    def __init__(self, path: Path, dtype: DTypeLike, row_shape: tuple[int, ...] = ()):
        self.path = path
        self.rows = 0
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self._file = path.open("wb")
        self._write_header()
        self._start = self._file.tell()

    def append(self, rows: NDArray[Any]) -> None:
        """Write rows [n, *row_shape], converted to the file's type if they have another."""
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8).data)
        self.rows += len(rows)

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == self._start, "the header changed its length"
        self._file.close()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write_header(self) -> None:
        shape = (self.rows, *self._row_shape)
        description = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, description)


def write_npy(path: Path, array: NDArray[Any], *, release: Callable[[], None] | None = None) -> None:
    """`np.save` for an array that may be a map of any size.  release: gives its pages back, called piece by piece.

    A full disk raises an OSError with its errno, which np.save loses.
    """
    with NpyWriter(path, array.dtype, array.shape[1:]) as file:
        for piece in pieces(array):
            file.append(piece)
            if release is not None:
                release()
