"""The k nearest rows of a table behind one call, whichever way they are found.

Exact search handles every query. For cosine over all rows of a large table, an index with enough recall takes over
(service.embeddings.approximate): its candidates are scored exactly, and what it cannot answer in full is searched
exactly.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from service.embeddings.approximate import GOAL, Index, open_index
from service.embeddings.exact import Metric, nearest
from service.embeddings.layout import IndexKind, index_files
from service.embeddings.table import Table
from trainer.errors import Infrastructure, InvalidInput

Backend = Literal["auto", "exact", "hnsw", "ivf"]


@dataclass(frozen=True)
class Found:
    """Neighbours of q queries, best first, ties by row; k' = min(k, what there is)."""

    rows: NDArray[np.int64]  # [q, k'], -1 where a query has fewer
    scores: NDArray[np.float32]  # [q, k'] exact whatever the backend; NaN where the row is -1
    backend: Literal["exact", "hnsw", "ivf"]


class Searcher:
    """Searches of one open table; several threads may use it at once. An index is opened when it is first of use."""

    def __init__(self, table: Table, *, use_index_from: int) -> None:
        """`use_index_from`: rows from which an index is used without being asked for by name."""
        self._table = table
        self._use_index_from = use_index_from
        self._lock = threading.Lock()
        self._open: dict[IndexKind, Index] = {}
        self._refused: dict[IndexKind, tuple[int, str]] = {}  # which document was tried in vain, and why

    def search(
        self, queries: NDArray[np.float32], k: int, *, metric: Metric = "cosine", backend: Backend = "auto",
        among: NDArray[np.int64] | None = None, exclude: NDArray[np.int64] | None = None,
    ) -> Found:  # fmt: skip
        """The k nearest rows of each query, [q, dim].

        Args:
            among: only these rows, ascending and unique.
            exclude: [q], one row per query that does not count, -1 for none.

        Raises:
            InvalidInput: queries of another dimension, not finite, or zero with cosine; a backend that is not built or
                does not do this metric or filter.
            Infrastructure: an index asked for by name cannot be read, or the table has changed under our eyes.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        self._check(queries, k, metric, backend)
        index = self._chosen(backend, metric, filtered=among is not None)
        table = self._table
        table.files.check()
        if index is not None:
            found = self._by_index(index, queries, k, exclude)
            table.files.check()
            return found
        rows, scores = nearest(
            table.vectors, table.inverse_norms, queries, k, metric=metric, among=among, exclude=exclude,
            between=table.files.check,
        )  # fmt: skip
        return Found(rows, scores, "exact")

    def close(self) -> None:
        """Let go of the indexes; a search that uses one goes on."""
        with self._lock:
            self._open.clear()

    def _check(self, queries: NDArray[np.float32], k: int, metric: Metric, backend: Backend) -> None:
        dim = self._table.info.dim
        if queries.ndim != 2 or queries.shape[1] != dim:
            raise InvalidInput(f"queries have the shape {queries.shape}; the table needs [queries, {dim}].")
        if k < 1:
            raise InvalidInput(f"k is {k}; it must be at least 1.")
        if metric not in get_args(Metric):
            raise InvalidInput(f"invalid metric {metric!r} (expected one of {', '.join(get_args(Metric))}).")
        if backend not in get_args(Backend):
            raise InvalidInput(f"invalid backend {backend!r} (expected one of {', '.join(get_args(Backend))}).")
        if len(bad := np.flatnonzero(~np.isfinite(queries).all(axis=1))):
            raise InvalidInput(f"query {bad[0]} holds NaN or infinity.")
        if metric == "cosine" and len(bad := np.flatnonzero(~queries.any(axis=1))):
            raise InvalidInput(f"query {bad[0]} is a zero vector, which has no cosine. Use metric dot.")

    def _chosen(self, backend: Backend, metric: Metric, *, filtered: bool) -> Index | None:
        """The index to use; none: search exactly."""
        if backend == "exact":
            return None
        if backend == "auto":
            if metric != "cosine" or filtered or self._table.info.rows < self._use_index_from:
                return None
            for kind in get_args(IndexKind):
                try:
                    index = self._index(kind)
                except (InvalidInput, OSError):
                    continue  # exact search answers as well, only slower
                if index.recall >= GOAL:
                    return index
            return None
        if metric != "cosine":
            raise InvalidInput(f"backend {backend} searches by cosine only. For metric {metric} use exact or auto.")
        if filtered:
            raise InvalidInput(f"backend {backend} searches all rows only. With a filter use exact or auto.")
        try:
            return self._index(backend)
        except FileNotFoundError as error:
            raise InvalidInput(f"this version has no {backend} index. Build it, or use exact or auto.") from error
        except OSError as error:
            raise Infrastructure(f"the {backend} index cannot be read: {error.strerror}") from error

    def _index(self, kind: IndexKind) -> Index:
        """The open index. Raises as open_index does; one that was refused is not tried again until it is rebuilt."""
        if (known := self._open.get(kind)) is not None:
            if known.files.changed() is None:
                return known
            with self._lock:
                self._open.pop(kind, None)
        document = (self._table.directory / index_files(kind)[1]).stat().st_mtime_ns
        with self._lock:
            if (known := self._open.get(kind)) is not None:
                return known
            tried, why = self._refused.get(kind, (None, ""))
            if tried == document:
                raise InvalidInput(why)
            try:
                opened = self._open[kind] = open_index(self._table, kind)
            except InvalidInput as error:
                self._refused[kind] = document, str(error)
                raise
            return opened

    def _by_index(self, index: Index, queries: NDArray[np.float32], k: int, exclude: NDArray[np.int64] | None) -> Found:
        total = self._table.info.rows
        left_out = np.full(len(queries), -1, np.int64) if exclude is None else np.asarray(exclude, np.int64)
        available = total - ((left_out >= 0) & (left_out < total))
        width = min(k, int(available.max(initial=0)))
        rows, scores = index.nearest(self._table, queries, width, left_out)
        # A graph may fall into parts, and lists may be empty: then exact search answers.
        short = np.flatnonzero((rows >= 0).sum(axis=1) < np.minimum(width, available))
        if len(short):
            table = self._table
            rest, their_scores = nearest(
                table.vectors, table.inverse_norms, queries[short], width, exclude=left_out[short]
            )
            rows[short], scores[short] = -1, np.nan
            rows[short, : rest.shape[1]], scores[short, : rest.shape[1]] = rest, their_scores
        return Found(rows, scores, index.kind)
