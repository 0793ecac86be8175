"""From ids to rows of the node table: sorted integers, or sorted hashes of texts whose every hit is compared.

Memory per node: nothing if the ids count up by one, 8 bytes if integers are sorted already, else 16; 24 while sorting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.data.importing.ids import Texts, text_buffers
from trainer.data.seeds import BITS, hashed_array

Ints = NDArray[np.int64]
COMPARED_AT_ONCE = 1 << 16  # texts; the pages they stand on are given back in between
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd, so that it loses nothing
_SEED = 0x6E6D_6C


class Duplicate(NamedTuple):
    """The first row whose id an earlier row has."""

    row: int
    earlier: int


class IntegerIndex:
    """Rows of int64 ids."""

    def __init__(self, ids: Ints):
        """ids: [N]; kept if it is in ascending order, else copied."""
        ascending = bool((ids[1:] > ids[:-1]).all())
        self._order = None if ascending else np.argsort(ids, kind="stable")
        self._sorted = ids if self._order is None else ids[self._order]
        self._dense = ascending and int(ids[-1]) - int(ids[0]) == len(ids) - 1
        self._first, self._last = int(self._sorted[0]), int(self._sorted[-1])
        if self._dense:
            self._sorted = ids[:0].copy()

    def duplicate(self) -> Duplicate | None:
        if self._order is None:
            return None
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if not len(again):
            return None
        row = int(self._order[again + 1].min())  # the sort is stable: rows of equal ids ascend
        value = self._sorted[int(np.flatnonzero(self._order == row)[0])]
        return Duplicate(row, int(self._order[np.searchsorted(self._sorted, value)]))

    def find(self, ids: pa.ChunkedArray) -> Ints:
        """Row of each id, -1 where there is none.  ids: [n] int64 or string -> [n]."""
        wanted, possible = _integers(ids)
        possible &= (wanted >= self._first) & (wanted <= self._last)
        if self._dense:
            return np.where(possible, wanted - self._first * possible, -1)
        place = _search(self._sorted, wanted)
        np.minimum(place, len(self._sorted) - 1, out=place)
        possible &= self._sorted[place] == wanted
        return np.where(possible, place if self._order is None else self._order[place], -1)


class TextIndex:
    """Rows of text ids. Two texts may share a hash: texts are compared wherever hashes are equal."""

    def __init__(self, texts: Texts, *, bits: int = BITS):
        """bits: of the hash that are kept; fewer only to see in tests that collisions do no harm."""
        self._texts = texts
        self._mask = np.uint64((1 << bits) - 1)
        hashes = np.empty(len(texts), dtype=np.uint64)
        for start in range(0, len(texts), COMPARED_AT_ONCE):
            piece = texts.array.slice(start, COMPARED_AT_ONCE)
            hashes[start : start + len(piece)] = hash_texts(piece) & self._mask
            texts.release()
        self._order: Ints = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def duplicate(self) -> Duplicate | None:
        rows: list[int] = []
        mixed: set[int] = set()  # hashes that different texts share: rare, so looked at one by one
        again = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        for start in range(0, len(again), COMPARED_AT_ONCE):
            place = again[start : start + COMPARED_AT_ONCE]
            same = self._equal_rows(self._order[place], self._order[place + 1])
            rows += [int(self._order[place + 1][same].min())] if same.any() else []
            mixed.update(self._hashes[place[~same]].tolist())
        for value in mixed:
            rows += self._repeated(value)
        if not rows:
            return None
        text = self._texts.array.slice(min(rows), 1)
        return Duplicate(min(rows), int(self.find(pa.chunked_array([text]))[0]))

    def find(self, ids: pa.ChunkedArray) -> Ints:
        """Row of each id, the first if several have it, -1 if none.  ids: [n] int64 or string -> [n]."""
        texts = _one_chunk(ids.cast(pa.string()) if pa.types.is_integer(ids.type) else ids)
        wanted = hash_texts(texts) & self._mask
        place = _search(self._hashes, wanted)
        row = np.full(len(texts), -1, dtype=np.int64)
        by_row = np.argsort(self._order[np.minimum(place, len(self._order) - 1)])  # so that texts are read in order
        for start in range(0, len(by_row), COMPARED_AT_ONCE):
            part = by_row[start : start + COMPARED_AT_ONCE]
            while len(part):  # once, and again for each collision
                at = np.minimum(place[part], len(self._hashes) - 1)
                hit = (place[part] < len(self._hashes)) & (self._hashes[at] == wanted[part])
                part, candidate = part[hit], self._order[at[hit]]
                same = self._texts.equal(candidate, texts.take(pa.array(part)))
                row[part[same]] = candidate[same]
                part = part[~same]
                place[part] += 1
        return row

    def _equal_rows(self, one: Ints, other: Ints) -> NDArray[np.bool_]:
        return self._texts.equal(one, self._texts.array.take(pa.array(other)))

    def _repeated(self, value: int) -> list[int]:
        """The first row with this hash whose text an earlier row has, if there is one."""
        low, high = (np.searchsorted(self._hashes, np.uint64(value), side=side) for side in ("left", "right"))
        seen: set[str] = set()
        for row in self._order[low:high].tolist():
            text = self._texts.array[row].as_py()
            if text in seen:
                return [row]
            seen.add(text)
        return []


def build_index(ids: Path, texts: Texts | None) -> IntegerIndex | TextIndex:
    """The index of the ids that `IdWriter` wrote."""
    return IntegerIndex(np.load(ids)) if texts is None else TextIndex(texts)


def hash_texts(texts: pa.Array) -> NDArray[np.uint64]:
    """A hash of each text, BITS bits, eight bytes of all texts at a time.  [n] string or large_string -> [n]."""
    offsets, data = text_buffers(texts)
    first = int(offsets[0]) if len(offsets) else 0
    data = np.concatenate([data[first : int(offsets[-1])], np.zeros(8, dtype=np.uint8)])
    words = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,))  # the 8 bytes from any place on
    start = offsets[:-1].astype(np.int64) - first
    length = np.diff(offsets).astype(np.int64)
    result = length.astype(np.uint64)
    active = np.flatnonzero(length > 0)
    for done in range(0, int(length.max(initial=0)), 8):
        active = active[length[active] > done]
        word = words[start[active] + done]
        left = np.minimum(length[active] - done, 8)
        word &= np.uint64(2**64 - 1) >> (8 * (8 - left)).astype(np.uint64)  # less what belongs to the next text
        result[active] = hashed_array(_SEED, result[active] * _SPREAD + word)
    return result


def _integers(ids: pa.ChunkedArray) -> tuple[Ints, NDArray[np.bool_]]:
    """Ids as int64, and which of them are: text counts if it is written as an integer prints."""
    if pa.types.is_integer(ids.type):
        values = ids.to_numpy()
        return values, np.ones(len(values), dtype=bool)
    plain = pc.match_substring_regex(ids, "^(0|-?[1-9][0-9]{0,17})$")  # surely below 2^63
    values = pc.fill_null(pc.if_else(plain, ids, None).cast(pa.int64()), 0).to_numpy().copy()
    possible = plain.to_numpy().copy()
    longest = pc.match_substring_regex(ids, "^-?[1-9][0-9]{18}$")
    for index in np.flatnonzero(longest.to_numpy()).tolist():
        value = int(ids[index].as_py())
        if -(2**63) <= value < 2**63:
            values[index], possible[index] = value, True
    return values, possible


def _search(ordered: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    """np.searchsorted, but in ascending order of what is wanted: several times faster, neighbours share the cache."""
    order = np.argsort(wanted)
    place = np.empty(len(wanted), dtype=np.intp)
    place[order] = np.searchsorted(ordered, wanted[order])
    return place


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
