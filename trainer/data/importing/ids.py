"""Node ids as they arrive: int64 while every one of them can be, else text.

Text is kept as UTF-8 and offsets while the import lasts, since numpy's own form gives each id the width of the longest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.files.mapped import PIECE_BYTES, Maps, pieces, release
from trainer.files.npy import NpyWriter

OBJECT_BYTES = 100  # about what a text costs as a Python object on its way into numpy


class IdWriter:
    """Blocks of ids in; `ids.npy` and, where they are text, a `Texts` out."""

    def __init__(self, directory: Path, scratch: Path):
        self._path = directory / "ids.npy"
        self._scratch = scratch
        self._integers: NpyWriter | None = NpyWriter(self._path, np.int64)
        self._texts: _TextWriter | None = None

    def add(self, ids: pa.ChunkedArray) -> None:
        """ids: int64 or string. The first string turns the integers before it into text, each as it prints."""
        if self._integers is not None and pa.types.is_integer(ids.type):
            self._integers.append(ids.to_numpy())
            return
        if self._texts is None:
            self._texts = _TextWriter(self._scratch)
        if self._integers is not None:
            self._integers.close()
            self._integers = None
            written = np.load(self._path, mmap_mode="r")
            for piece in pieces(written, row_bytes=OBJECT_BYTES):
                self._texts.add(pa.array(piece).cast(pa.string()))
                release(written)
        for chunk in ids.cast(pa.string()).chunks:
            self._texts.add(chunk)

    def finish(self) -> Texts | None:
        """Write ids.npy. Returns the ids for looking up if they are text; integers are in ids.npy itself."""
        if self._texts is None:
            assert self._integers is not None
            self._integers.close()
            return None
        texts, width = self._texts.finish()
        step = max(1, PIECE_BYTES // (OBJECT_BYTES + 4 * width))
        with NpyWriter(self._path, f"<U{width}") as file:
            for start in range(0, len(texts), step):
                piece = texts.array.slice(start, step)
                file.append(piece.to_numpy(zero_copy_only=False).astype(f"<U{width}"))
                texts.release()
        return texts


class _TextWriter:
    def __init__(self, scratch: Path):
        self._data_path, self._offset_path = scratch / "ids.utf8", scratch / "ids.offsets.npy"
        self._data = self._data_path.open("wb")
        self._offsets = NpyWriter(self._offset_path, np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._bytes = 0
        self._width = 1

    def add(self, chunk: pa.StringArray) -> None:
        if not len(chunk):
            return
        offsets, data = text_buffers(chunk)
        self._data.write(data[offsets[0] : offsets[-1]].data)
        self._offsets.append(self._bytes + offsets[1:].astype(np.int64) - offsets[0])
        self._bytes += int(offsets[-1] - offsets[0])
        self._width = max(self._width, pc.max(pc.utf8_length(chunk)).as_py())

    def finish(self) -> tuple[Texts, int]:
        """The texts, and the number of characters of the longest."""
        self._data.close()
        self._offsets.close()
        return Texts(self._data_path, self._offset_path), self._width


class Texts:
    """All ids as an Arrow array whose buffers are memory maps: [N] large_string, read where asked."""

    def __init__(self, data: Path, offsets: Path):
        maps: tuple[Any, ...] = np.load(offsets, mmap_mode="r"), np.memmap(data, mode="r", dtype=np.uint8)
        buffers = [pa.py_buffer(memoryview(part).cast("B")) for part in maps]
        self.array = pa.LargeStringArray.from_buffers(len(maps[0]) - 1, *buffers)
        self._maps = Maps(maps)

    def __len__(self) -> int:
        return len(self.array)

    def equal(self, rows: NDArray[np.int64], texts: pa.Array) -> NDArray[np.bool_]:
        """Whether the ids of these rows are these texts.  [n], [n] -> [n]. Rows in ascending order read fastest."""
        taken = self.array.take(pa.array(rows))
        same: NDArray[np.bool_] = pc.equal(taken, texts.cast(pa.large_string())).to_numpy(zero_copy_only=False)
        self.release()
        return same

    def release(self) -> None:
        self._maps.release()


def text_buffers(texts: pa.Array) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Offsets [n + 1] of a string or large_string array into its bytes, and the bytes, uncopied."""
    _, offsets, data = texts.buffers()
    wide = pa.types.is_large_string(texts.type)
    where = np.frombuffer(offsets, dtype=np.int64 if wide else np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return where, np.frombuffer(b"" if data is None else data, dtype=np.uint8)
