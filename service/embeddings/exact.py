"""Exact k nearest rows of a memory-mapped [N, dim] float32 table, which is never copied or normalised on the way.

Two steps. A float32 sweep over blocks of rows multiplies all queries with each block (BLAS, which releases the GIL) and
keeps a few more candidates than asked for; the best ones so far give a threshold that few later entries pass, so the
selection costs one comparison per product. Then the candidates are scored again in float64, one by one:

    score = float32(q·x)  or  float32(q·x / |q||x|),   sorted by (-score, row)

Hence an answer depends neither on how queries were grouped nor on how BLAS rounds. No order of summation errs by more
than about dim·2⁻²⁴·|x| for a query of length 1. Where more rows than were kept lie within that of the last place (they
are equal or nearly so, or their lengths differ by many powers of ten), a second sweep scores all of those: the answer
is as exact, and if that is most of the table takes some ten times as long. Memory besides the answer stays below about
150 MB, whatever the number of queries, k and N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Metric = Literal["cosine", "dot"]
Rows = NDArray[np.int64]
Floats = NDArray[np.float32]

PRODUCTS = 1 << 22  # entries of one block of scores: 16 MB, which still fits a last-level cache
GATHERED = 1 << 22  # float32 numbers copied at a time where only some rows take part
RESCORED = 1 << 20  # float64 numbers at a time where scores are exact: 8 MB an array
CANDIDATES = 1 << 19  # kept by one group of queries
FEW = 3  # queries that are multiplied one by one: below this a matrix product is slower
CACHED = 1 << 17  # float32 numbers of a block that stays in a core's cache from query to query
SAMPLE = 4096  # columns that give the first threshold
SHORT = 2.0**-100  # a vector shorter than this counts as zero: below, products vanish between the numbers of float32
LOWEST = np.finfo(np.float32).min
LARGEST = np.finfo(np.float32).max


def load_faiss() -> Any:
    """The faiss module, loaded when it is first needed (a third of a second); its type stubs lack much of it."""
    import faiss

    return faiss


@dataclass(frozen=True)
class Vectors:
    """What is searched: `among` (ascending, unique) are the rows that take part, None means all."""

    vectors: Floats  # [N, dim], in C order
    inverse_norms: Floats  # [N], 0 for a zero vector and one shorter than SHORT
    metric: Metric
    among: Rows | None = None
    between: Callable[[], None] = lambda: None  # called before each block

    @property
    def error(self) -> float:
        """How far a float32 product of a unit query and a vector of length 1 may be from the truth.

        dim roundings of the sum, one each of query, norm and last step, a quarter of dim for numbers that vanish at
        SHORT, and something for what this leaves out (squares of these).
        """
        return 2.0**-24 * (8 + 1.3 * self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vectors) if self.among is None else len(self.among)

    def positions(self, rows: Rows) -> Rows:
        """Where rows stand in the sweep; -1 for rows that take no part."""
        if self.among is None:
            return np.where((rows >= 0) & (rows < len(self.vectors)), rows, -1)
        if not len(self.among):
            return np.full(len(rows), -1, np.int64)
        at = np.searchsorted(self.among, rows)
        at[at == len(self.among)] = 0
        return np.where(self.among[at] == rows, at, -1)

    def rows(self, positions: Rows) -> Rows:
        return positions if self.among is None else self.among[positions]


def nearest(
    vectors: Floats, inverse_norms: Floats, queries: Floats, k: int, *,
    metric: Metric = "cosine", among: Rows | None = None, exclude: Rows | None = None,
    between: Callable[[], None] = lambda: None,
) -> tuple[Rows, Floats]:  # fmt: skip
    """Rows [q, k'] and scores [q, k'] of the k nearest, best first, ties by row; k' = min(k, what there is).

    `exclude`: [q] one row per query that does not count, -1 for none. Where a query has fewer than k' rows the rest is
    row -1 with score NaN. Queries are finite, and with cosine not zero (a vector whose inverse norm is 0 scores 0). No
    vector is longer than 1e18 (service.embeddings.publish sees to that), so nothing overflows float32 on the way.
    `between` is called before each block of rows and at the end; it may raise.
    """
    searched = Vectors(np.asarray(vectors), np.asarray(inverse_norms), metric, among, between)
    queries = np.ascontiguousarray(queries, np.float32)
    left_out = np.full(len(queries), -1, np.int64) if exclude is None else searched.positions(np.asarray(exclude))
    available = len(searched) - (left_out >= 0)
    width = min(k, int(available.max(initial=0)))
    rows, scores = np.full((len(queries), width), -1, np.int64), np.full((len(queries), width), np.nan, np.float32)
    if not width:
        return rows, scores
    kept = min(width + max(16, width // 8), len(searched))
    group = max(1, min(CANDIDATES // kept, PRODUCTS // 4096))
    for start in range(0, len(queries), group):
        part = slice(start, start + group)
        rows[part], scores[part] = _nearest_of_group(searched, queries[part], width, kept, left_out[part])
    between()
    return rows, scores


def rescored(searched: Vectors, queries: Floats, candidates: Rows, k: int) -> tuple[Rows, Floats]:
    """The k best of each query's candidates [q, c] (-1: none; no row twice) by exact score: rows and scores [q, k]."""
    scores = _exact_scores(searched, queries, candidates)
    rank = np.where(candidates < 0, np.inf, -scores)  # none comes last
    order = np.lexsort((candidates, rank), axis=1)[:, :k]
    rows, scores = np.take_along_axis(candidates, order, 1), np.take_along_axis(scores, order, 1)
    scores[rows < 0] = np.nan
    return rows, scores


def _nearest_of_group(searched: Vectors, queries: Floats, k: int, kept: int, left_out: Rows) -> tuple[Rows, Floats]:
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    # Only the order matters until the candidates are scored again, and unit queries cannot overflow float32.
    unit = (queries / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)
    best = _Best(len(queries), kept)
    for start, products in _sweep(searched, unit, left_out):
        best.offer(products, start)
    positions, dropped = best.settled()
    if not lengths.all():  # all scores are 0: the first rows it is, and none of the others can be better
        first = np.arange(kept)
        positions[lengths == 0] = np.where(first == left_out[lengths == 0, None], -1, first)
        dropped[lengths == 0] = -np.inf
    candidates = np.where(positions < 0, -1, searched.rows(positions))
    rows, scores = rescored(searched, queries, candidates, k)

    # What was dropped seemed to score `dropped` at most. Could it stand in the last place, in spite of rounding?
    scale = lengths if searched.metric == "dot" else np.ones(len(queries))
    with np.errstate(over="ignore"):
        below = np.nextafter(scores[:, -1], np.float32(-np.inf))  # whatever rounds to the last score is above
    unsure = np.flatnonzero(dropped >= _floors(searched, below, scale))  # NaN (fewer than k rows): nothing was dropped
    if len(unsure):
        rows[unsure], scores[unsure] = _all_in_doubt(
            searched, queries[unsure], unit[unsure], k, left_out[unsure], below[unsure], scale[unsure]
        )
    return rows, scores


def _floors(searched: Vectors, scores: Floats, scale: NDArray[np.float64]) -> Floats:
    """[q]: a row for which the sweep gives less than this scores less than `scores`; `scale` is what divides these."""
    slack = searched.error if searched.metric == "cosine" else 0.0
    low = scores / np.where(scale > 0, scale, 1) - slack
    return np.nextafter(np.clip(low, LOWEST, LARGEST).astype(np.float32), LOWEST)


def _sweep(searched: Vectors, unit: Floats, left_out: Rows) -> Iterator[tuple[int, Floats]]:
    """Products of all queries with one block of rows after another: (position of its first row, [q, block]).

    Cosines may be off by `searched.error` either way. Dot products have each row's possible error added to them, since
    that grows with its length: they are never less than the truth.
    """
    rows, dim = len(searched), searched.vectors.shape[1]
    block = max(1, PRODUCTS // len(unit))
    if searched.among is not None:
        block = min(block, max(1, GATHERED // max(dim, 1)))
    excluding = np.flatnonzero(left_out >= 0)
    space = np.empty((len(unit), min(block, rows)), np.float32)
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        taken: slice | Rows = slice(start, stop) if searched.among is None else searched.among[start:stop]
        products = space if stop - start == space.shape[1] else np.empty((len(unit), stop - start), np.float32)
        searched.between()
        x = searched.vectors[taken]
        if len(unit) <= FEW:
            _few_products(x, unit, products)
        else:
            np.matmul(unit, x.T, out=products)
        inverse = searched.inverse_norms[taken]
        if searched.metric == "cosine":
            products *= inverse
        else:
            products += np.float32(searched.error) / np.where(inverse > 0, inverse, np.float32(1 / SHORT))
        inside = excluding[(left_out[excluding] >= start) & (left_out[excluding] < stop)]
        products[inside, left_out[inside] - start] = -np.inf
        yield start, products


def _few_products(x: Floats, unit: Floats, out: Floats) -> None:
    """unit @ x.T, bound by reading x once. FAISS's kernel takes half the time of OpenBLAS here, and leaves the GIL."""
    faiss = load_faiss()
    step = len(x) if len(unit) == 1 else CACHED // x.shape[1] + 1
    for start in range(0, len(x), step):
        some = x[start : start + step]
        for query, line in zip(unit, out, strict=True):
            into = line[start : start + step]
            faiss.fvec_inner_products_ny(
                faiss.swig_ptr(into), faiss.swig_ptr(query), faiss.swig_ptr(some), x.shape[1], len(some)
            )


class _Best:
    """The `kept` best positions of each query so far, in flat arrays ordered by query.

    What passes the threshold waits until there is as much of it as is kept: then both are sorted together and the
    threshold rises. So the sorting happens about once per doubling of the rows seen.
    """

    def __init__(self, queries: int, kept: int) -> None:
        self.kept = kept
        self.threshold = np.full(queries, LOWEST, np.float32)  # the lowest, not -inf: what is left out scores -inf
        self.dropped = np.full(queries, -np.inf, np.float32)  # no candidate that was let go scored more than this
        self.queries, self.positions = np.empty(0, np.int64), np.empty(0, np.int64)
        self.scores = np.empty(0, np.float32)
        self.waiting: list[tuple[Rows, Rows, Floats]] = []
        self.seen = 0

    def offer(self, products: Floats, start: int) -> None:
        """products: [q, block] scores of the positions from `start` on."""
        queries, block = products.shape
        if not self.seen and block > self.kept:
            first = products[:, : max(SAMPLE, 4 * self.kept)]
            if first.shape[1] > self.kept:
                lowest = np.partition(first, first.shape[1] - self.kept, axis=1)[:, first.shape[1] - self.kept]
                self.threshold = np.maximum(lowest, LOWEST)
        passed = products >= self.threshold[:, None] if not self.seen else products > self.threshold[:, None]
        self.seen += block
        if block > self.kept and np.count_nonzero(passed) > max(products.size // 16, 4 * queries * self.kept):
            # The table is ordered by score, or full of equals: choose per query, in bounded memory.
            column = np.argpartition(products, block - self.kept, axis=1)[:, block - self.kept :]
            query = np.repeat(np.arange(queries), self.kept)
            column = column.ravel()
            scores = products[query, column]
            lowest = scores.reshape(queries, self.kept).min(axis=1)
            self.dropped = np.maximum(self.dropped, lowest)
            real = scores >= LOWEST
            self._add(query[real], column[real] + start, scores[real])
        else:
            self.dropped = np.maximum(self.dropped, np.where(self.threshold > LOWEST, self.threshold, -np.inf))
            flat = np.flatnonzero(passed)
            query = flat // block
            self._add(query, flat - query * block + start, products.reshape(-1)[flat])

    def _add(self, queries: Rows, positions: Rows, scores: Floats) -> None:
        self.waiting.append((queries, positions, scores))
        if sum(len(found[0]) for found in self.waiting) >= len(self.threshold) * self.kept:
            self._merge()

    def _merge(self) -> None:
        everything = [(self.queries, self.positions, self.scores), *self.waiting]
        queries, positions, scores = (np.concatenate(column) for column in zip(*everything, strict=True))
        self.waiting = []
        # Float bits, made monotonous and descending, below the number of the query: one integer sort does both.
        bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)
        order = np.argsort((queries << 32) - np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))
        queries, positions, scores = queries[order], positions[order], scores[order]
        counts = np.bincount(queries, minlength=len(self.threshold))
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(queries)) - starts[queries]
        over = rank == self.kept  # the best of those let go
        self.dropped[queries[over]] = np.maximum(self.dropped[queries[over]], scores[over])
        last = rank == self.kept - 1
        self.threshold[queries[last]] = np.maximum(self.threshold[queries[last]], scores[last])
        stay = rank < self.kept
        self.queries, self.positions, self.scores = queries[stay], positions[stay], scores[stay]

    def settled(self) -> tuple[Rows, Floats]:
        """Positions [q, kept] (-1: no more), and [q] the score above which nothing was dropped."""
        self._merge()
        counts = np.bincount(self.queries, minlength=len(self.threshold))
        rank = np.arange(len(self.queries)) - (np.cumsum(counts) - counts)[self.queries]
        positions = np.full((len(self.threshold), self.kept), -1, np.int64)
        positions[self.queries, rank] = self.positions
        return positions, self.dropped


def _all_in_doubt(
    searched: Vectors, queries: Floats, unit: Floats, k: int, left_out: Rows, below: Floats, scale: NDArray[np.float64]
) -> tuple[Rows, Floats]:
    """Rows and scores [q, k], chosen from every row whose score may be more than `below` [q]: k at least are.

    In the order of the rows, so that once k are found one with an equal score comes too late. A product in float64
    tells nearly always how the exact score rounds, for all queries at once; where it does not, that is formed.
    """
    below, floors = below.copy(), _floors(searched, below, scale)
    rows, scores = [np.empty(0, np.int64) for _ in queries], [np.empty(0, np.float32) for _ in queries]
    step = max(1, RESCORED // max(len(queries), searched.vectors.shape[1]))
    for start, products in _sweep(searched, unit, left_out):
        passed = products >= floors[:, None]
        columns = np.flatnonzero(passed.any(axis=0))
        for first in range(0, len(columns), step):
            some = columns[first : first + step]
            candidates = searched.rows(some + start)
            low, high = _brackets(searched, queries, candidates)
            wanted = passed[:, some] & (high > below[:, None])
            for at in np.flatnonzero(wanted.any(axis=1)):
                found = np.flatnonzero(wanted[at])
                theirs, vague = low[at, found], low[at, found] != high[at, found]
                theirs[vague] = _exact_scores(searched, queries[at : at + 1], candidates[found[vague]][None])[0]
                both = np.concatenate([scores[at], theirs])
                order = np.argsort(-both, kind="stable")[:k]
                rows[at], scores[at] = np.concatenate([rows[at], candidates[found]])[order], both[order]
                if len(order) == k:
                    below[at] = max(below[at], scores[at][-1])
        floors = _floors(searched, below, scale)
    return np.stack(rows), np.stack(scores)


def _brackets(searched: Vectors, queries: Floats, rows: Rows) -> tuple[Floats, Floats]:
    """[q, n] twice: numbers between which the exact scores are; equal ones are these scores."""
    q, x = queries.astype(np.float64), searched.vectors[rows].astype(np.float64)
    lengths, norms = np.sqrt((q * q).sum(axis=1)), np.sqrt((x * x).sum(axis=1))
    if searched.metric == "cosine":
        q /= lengths[:, None]
        x /= np.where(norms > 0, norms, 1)[:, None]
        x[searched.inverse_norms[rows] == 0] = 0
        lengths, norms = np.ones(len(q)), np.where(searched.inverse_norms[rows] > 0, 1.0, 0.0)
    products = q @ x.T
    error = 2.0**-52 * (8 + len(x.T)) * lengths[:, None] * norms  # of this product and of the exact score together
    return _rounded(products - error), _rounded(products + error)


def _rounded(scores: NDArray[np.float64]) -> Floats:
    return np.clip(scores, -LARGEST, LARGEST).astype(np.float32)


def _exact_scores(searched: Vectors, queries: Floats, candidates: Rows) -> Floats:
    """Scores [q, c] of candidate rows, each summed by itself in float64 so that equal vectors score equally."""
    width, dim = candidates.shape[1], searched.vectors.shape[1]
    scores = np.empty(candidates.shape, np.float32)
    step = max(1, RESCORED // max(width * dim, 1))
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        q = queries[part].astype(np.float64)
        lengths = np.sqrt((q * q).sum(axis=1))[:, None]
        columns = max(1, RESCORED // max(len(q) * dim, 1))
        for first in range(0, width, columns):
            rows = candidates[part, first : first + columns]
            x = searched.vectors[rows].astype(np.float64)  # -1 reads a row nobody uses
            exact = (x * q[:, None, :]).sum(axis=2)
            if searched.metric == "cosine":
                norms = lengths * np.sqrt((x * x).sum(axis=2))
                exact = np.divide(exact, norms, out=np.zeros_like(exact), where=searched.inverse_norms[rows] > 0)
            scores[part, first : first + columns] = _rounded(exact)
    return scores
