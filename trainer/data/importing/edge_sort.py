"""Sort more edges than fit in memory, merge duplicates and add reverse edges: `trainer.data.edges.compress` on disk.

The edge j -> i has the key i * N + j. Keys are spread over files by ranges, in the order they come; a range that holds
too many is spread again, and then range after range is sorted in memory and appended to the result. All of a key's
entries are in one range and keep their order, so weights are added exactly as they would be in memory.

An undirected list is spread twice, as listed and reversed. Where both agree in every key and weight, the list was
symmetric already and its weights stand as they are; until that is known, both answers are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.edges import Floats, Ints, merge, notes
from trainer.files.npy import NpyWriter

MOST_FILES = 128  # ranges spread at once, each with two files; at most 256, so that their numbers sort as bytes
LISTED, REVERSE = 0, 1  # the two files of a range
_WEIGHTED = np.dtype([("key", "<i8"), ("weight", "<f4")])
Entries = NDArray[Any]  # int64 keys, or _WEIGHTED
Merged = tuple[Ints, Floats | None]  # ascending keys, each once, and their weights


@dataclass(frozen=True)
class _Range:
    """The entries with low <= key < high: a file of those that were listed, one of those that were reversed."""

    low: int
    high: int
    files: tuple[Path, Path]

    def entries(self, record: int) -> int:
        return sum(path.stat().st_size for path in self.files if path.exists()) // record

    def remove(self) -> None:
        for path in self.files:
            path.unlink(missing_ok=True)


class EdgeSorter:
    """Takes edges in any order; `write` turns them into indptr.npy, indices.npy and weight.npy.

    Args:
        expected: about how many edges will come, to choose the number of files. A wrong guess costs time only.
        at_once: the entries that may be in memory while sorting.
    """

    def __init__(
        self, scratch: Path, num_nodes: int, *, weighted: bool, directed: bool, expected: int, at_once: int
    ) -> None:
        self._scratch, self._num_nodes = scratch, num_nodes
        self._weighted, self._directed = weighted, directed
        self._at_once = max(1, at_once)
        self._dtype = _WEIGHTED if weighted else np.dtype("<i8")
        self._number = count()
        self._loops = 0
        self._listed = 0
        self._ranges = self._cut(0, num_nodes**2, expected if directed else 2 * expected)

    def add(self, edge_index: Ints, weight: Floats | None) -> None:
        """edge_index: [2, n] sources and targets below N; weight: [n] if the graph has weights."""
        source, target = edge_index
        loops = source == target
        if number := int(loops.sum()):
            self._loops += number
            source, target = source[~loops], target[~loops]
            weight = None if weight is None else weight[~loops]
        self._listed += len(source)
        self._spread(_entries(target * self._num_nodes + source, weight), self._ranges, LISTED)
        if not self._directed:
            self._spread(_entries(source * self._num_nodes + target, weight), self._ranges, REVERSE)

    def write(self, directory: Path, tell: Callable[[float], None]) -> tuple[str, ...]:
        """Sort everything into `directory`. Returns the notes that `compress` would give."""
        different = 0  # listed edges, each counted once
        symmetric = self._weighted and not self._directed
        result = _Result(directory, self._scratch, self._num_nodes, weighted=self._weighted, both=symmetric)
        with result:
            for part in self._small_ranges():
                listed = self._merged(part, LISTED)
                different += len(listed[0])
                if self._directed:
                    result.append(part.high, *listed)
                else:
                    reverse = self._merged(part, REVERSE)
                    symmetric = symmetric and _equal(listed, reverse)
                    result.append(part.high, *_union(listed, reverse), as_listed=listed[1] if symmetric else None)
                part.remove()
                tell(part.high / self._num_nodes**2)
        if symmetric:
            result.take_weights_as_listed()
        return notes(
            loops=self._loops, merged=self._listed - different, weighted=self._weighted,
            edges=result.edges, isolated=self._num_nodes - int(result.touched.sum()),
        )  # fmt: skip

    def _cut(self, low: int, high: int, entries: int) -> list[_Range]:
        """Equal ranges of keys that would each hold half of what fits, were keys spread evenly."""
        parts = min(MOST_FILES, high - low, max(1, -(-2 * entries // self._at_once)))
        width = -(-(high - low) // parts)
        ranges = []
        for start in range(low, high, width):
            number = next(self._number)
            files = self._scratch / f"{number}.listed", self._scratch / f"{number}.reverse"
            ranges.append(_Range(start, min(start + width, high), files))
        return ranges

    def _spread(self, entries: Entries, ranges: list[_Range], direction: int) -> None:
        """Append each entry to its range's file, keeping their order."""
        width = ranges[0].high - ranges[0].low
        number = (_keys(entries) - ranges[0].low) // width
        ends = np.cumsum(np.bincount(number, minlength=len(ranges))).tolist()
        entries = entries[np.argsort(number.astype(np.uint8), kind="stable")]
        for part, start, end in zip(ranges, [0, *ends], ends, strict=False):
            if end > start:
                with part.files[direction].open("ab") as file:
                    file.write(entries[start:end].view(np.uint8).data)

    def _small_ranges(self) -> Iterator[_Range]:
        """All ranges in order, those with too many entries cut into smaller ones; a single key cannot be."""
        waiting = self._ranges[::-1]
        while waiting:
            part = waiting.pop()
            entries = part.entries(self._dtype.itemsize)
            if entries <= self._at_once or part.high - part.low == 1:
                yield part
                continue
            smaller = self._cut(part.low, part.high, entries)
            for direction in (LISTED, REVERSE):
                for piece in self._pieces(part.files[direction]):
                    self._spread(piece, smaller, direction)
            part.remove()
            waiting += smaller[::-1]

    def _merged(self, part: _Range, direction: int) -> Merged:
        """Ascending keys of a range, without repetitions, and the sums of their weights."""
        path = part.files[direction]
        if part.entries(self._dtype.itemsize) <= self._at_once:
            empty = np.empty(0, dtype=self._dtype)
            entries: Entries = np.fromfile(path, dtype=self._dtype) if path.exists() else empty
            return merge(_keys(entries).copy(), entries["weight"].copy() if self._weighted else None)
        total, found = 0.0, 0  # one edge, listed more often than fits
        for piece in self._pieces(path):
            found += len(piece)
            total += float(piece["weight"].sum(dtype=np.float64)) if self._weighted else 0
        key = np.full(min(found, 1), part.low, dtype=np.int64)
        return key, np.full(len(key), total, dtype=np.float32) if self._weighted else None

    def _pieces(self, path: Path) -> Iterator[Entries]:
        if not path.exists():
            return
        with path.open("rb") as file:
            while len(entries := np.fromfile(file, dtype=self._dtype, count=max(1, self._at_once // 4))):
                yield entries


class _Result:
    """The compressed rows as they are appended, range after range."""

    def __init__(self, directory: Path, scratch: Path, num_nodes: int, *, weighted: bool, both: bool):
        self._num_nodes = num_nodes
        self._indptr = NpyWriter(directory / "indptr.npy", np.int64)
        self._indices = NpyWriter(directory / "indices.npy", np.int64)
        self._weight = NpyWriter(directory / "weight.npy", np.float32) if weighted else None
        self._as_listed = NpyWriter(scratch / "as_listed.npy", np.float32) if both else None
        self.touched = np.zeros(num_nodes, dtype=bool)

    @property
    def edges(self) -> int:
        return self._indices.rows

    def append(self, high: int, key: Ints, weight: Floats | None, as_listed: Floats | None = None) -> None:
        """Edges by ascending key; all keys below `high` have come with these."""
        before = self._indices.rows
        n = self._num_nodes
        target, source = np.divmod(key, n)
        self.touched[target] = True
        self.touched[source] = True
        self._indices.append(source)
        if self._weight is not None and weight is not None:
            self._weight.append(weight)
        if self._as_listed is not None and as_listed is not None:
            self._as_listed.append(as_listed)
        while self._indptr.rows * n <= high:  # indptr[i] counts the keys below i * n
            first = self._indptr.rows
            last = min(high // n, first + (1 << 18))
            self._indptr.append(before + np.searchsorted(target, np.arange(first, last + 1)))

    def take_weights_as_listed(self) -> None:
        assert self._as_listed is not None
        assert self._weight is not None
        self._as_listed.path.replace(self._weight.path)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for file in (self._indptr, self._indices, self._weight, self._as_listed):
            if file is not None:
                file.close()


def _union(listed: Merged, reverse: Merged) -> Merged:
    """`merge` of both, the listed ones first."""
    weight = None
    if listed[1] is not None and reverse[1] is not None:
        weight = np.concatenate([listed[1], reverse[1]])
    return merge(np.concatenate([listed[0], reverse[0]]), weight)


def _equal(one: Merged, other: Merged) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None)


def _entries(key: Ints, weight: Floats | None) -> Entries:
    if weight is None:
        return key
    entries = np.empty(len(key), dtype=_WEIGHTED)
    entries["key"], entries["weight"] = key, weight
    return entries


def _keys(entries: Entries) -> Ints:
    keys: Ints = entries["key"] if entries.dtype.names else entries
    return keys
