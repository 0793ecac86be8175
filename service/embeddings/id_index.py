"""From a user's node id to its row and back, without a table of Python objects: all of it stays in mapped files.

Integers: `ids.npy` in row order. Where they ascend, a row is found by halving that very file; where they are moreover
0 to N - 1, by nothing at all; else in `ids.sorted.npy`, and `ids.order.npy` tells the row of each sorted place.

Text: `ids.utf8` holds all ids one after the other, `ids.offsets.npy` int64 [N + 1] where each begins, `ids.hashes.npy`
uint64 [N] the ascending BLAKE2b hashes, and `ids.order.npy` the row of each. An id is compared in full, so that equal
hashes do no harm.

An integer and its canonical decimal text are the same id in both: 42 and "42" are, "042", "+42" and "-0" are not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.embeddings.layout import VersionInfo, ids_file
from trainer.files.mapped import map_bytes, map_npy

SORTED = "ids.sorted.npy"
ORDER = "ids.order.npy"
TEXT = "ids.utf8"
OFFSETS = "ids.offsets.npy"
HASHES = "ids.hashes.npy"
HASH_BYTES = 8

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_CANONICAL = re.compile(r"(?:0|-?[1-9][0-9]{0,18})", re.ASCII)  # nothing longer fits 64 bits


def digest(text: bytes) -> bytes:
    """HASH_BYTES by which a text id is found; little-endian."""
    return blake2b(text, digest_size=HASH_BYTES).digest()


def order_type(rows: int) -> np.dtype[np.signedinteger]:
    """Type of ids.order.npy: four bytes a row are enough for nearly every table."""
    return np.dtype("<i4" if rows <= 1 << 31 else "<i8")


class IdIndex:
    """The ids of one table; `open` gives the right kind."""

    @classmethod
    def open(cls, directory: Path, info: VersionInfo) -> IdIndex:
        """Map the files; nothing of any size is read.

        Raises:
            OSError, ValueError: a file is missing, or is not what `info` says.
        """
        return (_Numbers if info.id_type == "int" else _Texts)(directory, info)

    def row_of(self, node: int | str) -> int | None:
        """The row of an id, or None."""
        raise TypeError("an index is made by IdIndex.open")

    def rows_of(self, nodes: Sequence[int | str]) -> NDArray[np.int64]:
        """The rows of many ids, -1 for an unknown one."""
        raise TypeError("an index is made by IdIndex.open")

    def ids_of(self, rows: NDArray[np.int64]) -> list[int | str]:
        """The ids of rows, none of them negative.

        Raises:
            IndexError: a row that the table does not have.
        """
        raise TypeError("an index is made by IdIndex.open")


class _Numbers(IdIndex):
    def __init__(self, directory: Path, info: VersionInfo):
        rows = info.rows
        self._rows = rows
        self._ids: NDArray[np.int64] = map_npy(directory / ids_file(info), "<i8", (rows,))
        self._order: NDArray[np.signedinteger] | None = None
        self._sorted = self._ids
        if ORDER in info.files:
            self._sorted = map_npy(directory / SORTED, "<i8", (rows,))
            self._order = map_npy(directory / ORDER, order_type(rows), (rows,))
        # Distinct ascending integers from 0 to N - 1 can only be all of them.
        self._counted = self._order is None and int(self._ids[0]) == 0 and int(self._ids[-1]) == rows - 1

    def row_of(self, node: int | str) -> int | None:
        value = node if type(node) is int else _as_number(node)
        if value is None or not _LEAST <= value <= _GREATEST:
            return None
        if self._counted:
            return value if 0 <= value < self._rows else None
        place = int(self._sorted.searchsorted(value))
        if place == self._rows or self._sorted[place] != value:
            return None
        return place if self._order is None else int(self._order[place])

    def rows_of(self, nodes: Sequence[int | str]) -> NDArray[np.int64]:
        values, known = _as_numbers(nodes)
        if self._counted:
            return np.where(known & (values >= 0) & (values < self._rows), values, -1)
        places = self._sorted.searchsorted(values)
        np.minimum(places, self._rows - 1, out=places)
        rows = places if self._order is None else self._order[places]
        return np.where(known & (self._sorted[places] == values), rows, -1).astype(np.int64, copy=False)

    def ids_of(self, rows: NDArray[np.int64]) -> list[int | str]:
        return self._ids[rows].tolist()


class _Texts(IdIndex):
    def __init__(self, directory: Path, info: VersionInfo):
        rows = info.rows
        self._rows = rows
        self._text = map_bytes(directory / TEXT).data
        self._offsets: NDArray[np.int64] = map_npy(directory / OFFSETS, "<i8", (rows + 1,))
        self._hashes: NDArray[np.uint64] = map_npy(directory / HASHES, "<u8", (rows,))
        self._order: NDArray[np.signedinteger] = map_npy(directory / ORDER, order_type(rows), (rows,))
        # One value at a time, memoryviews answer several times faster than arrays.
        self._hash_list, self._row_list = self._hashes.data, self._order.data
        self._offset_list = self._offsets.data
        if self._offset_list[0] != 0 or self._offset_list[rows] != len(self._text):
            raise ValueError(f"{TEXT}: is not as long as {OFFSETS} says")

    def row_of(self, node: int | str) -> int | None:
        text = _as_text(node)
        if text is None:
            return None
        wanted = int.from_bytes(digest(text), "little")
        return self._compare(text, wanted, bisect_left(self._hash_list, wanted))

    def rows_of(self, nodes: Sequence[int | str]) -> NDArray[np.int64]:
        texts = [_as_text(node) for node in nodes]
        hashes = np.frombuffer(b"".join([digest(text or b"") for text in texts]), "<u8")
        places = self._hashes.searchsorted(hashes)
        np.minimum(places, self._rows - 1, out=places)
        found = self._order[places].astype(np.int64)
        hit = self._hashes[places] == hashes
        starts, ends = self._offsets[found].tolist(), self._offsets[found + 1].tolist()
        stored = self._text
        for number in np.flatnonzero(hit).tolist():
            text = texts[number]
            if text is None:
                hit[number] = False
            elif stored[starts[number] : ends[number]] != text:  # another id of the same hash; perhaps the next is it
                row = self._compare(text, int(hashes[number]), int(places[number]) + 1)
                hit[number] = row is not None
                found[number] = -1 if row is None else row
        return np.where(hit, found, -1)

    def ids_of(self, rows: NDArray[np.int64]) -> list[int | str]:
        rows = np.asarray(rows, np.int64)
        stored = self._text
        starts, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        return [str(stored[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def _compare(self, text: bytes, wanted: int, place: int) -> int | None:
        """The row of `text` among those with the hash `wanted`, the first of which is at `place`."""
        while place < self._rows and self._hash_list[place] == wanted:
            row = self._row_list[place]
            if self._text[self._offset_list[row] : self._offset_list[row + 1]] == text:
                return row
            place += 1
        return None


def _as_number(node: int | str) -> int | None:
    if isinstance(node, str):
        return int(node) if _CANONICAL.fullmatch(node) else None
    if isinstance(node, int | np.integer) and not isinstance(node, bool):
        return int(node)
    return None


def _as_numbers(nodes: Sequence[int | str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Values [n], and which of them are ids at all."""
    if all(type(node) is int for node in nodes):
        try:
            return np.array(nodes, np.int64), np.ones(len(nodes), np.bool_)
        except OverflowError:
            pass  # one of them fits no 64 bits: it is unknown, the others may be known
    numbers = [_as_number(node) for node in nodes]
    fits = [value is not None and _LEAST <= value <= _GREATEST for value in numbers]
    values = [value if fit else 0 for value, fit in zip(numbers, fits, strict=True)]
    return np.array(values, np.int64), np.array(fits, np.bool_)


def _as_text(node: int | str) -> bytes | None:
    if isinstance(node, str):
        return node.encode("utf-8", "surrogatepass")  # half a character is no valid UTF-8, so it is never found
    number = _as_number(node)
    if number is None or not -(1 << 512) < number < 1 << 512:  # Python refuses to write out numbers of any length
        return None
    return str(number).encode()
