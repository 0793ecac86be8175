"""Neighbours: from a validated request to what is found in one version. Computes, so it runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.api.embeddings.catalog import ServedVersion
from service.api.embeddings.negotiation import ARROW
from service.api.embeddings.raw_response import Piece
from service.api.embeddings.responses import check_size, document, dumps, results_json
from service.api.embeddings.schemas import Filter, NeighborOptions
from service.api.problems import FieldError, invalid, not_valid
from service.embeddings.parquet import neighbors_arrow
from trainer.errors import InvalidInput

Names = Sequence[int | str]
Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Queries:
    """What to search with, and what each is called in the answer."""

    names: Names
    vectors: Floats  # [q, dim]
    exclude: Rows | None  # [q] the row that is the query itself, -1 none
    unknown: Names
    field: str  # where they are in the request
    places: Rows  # [q] and at which place
    options: str = ""  # where the options stand: "neighbors." where they are a section


@dataclass(frozen=True)
class Neighborhood:
    """What was found, a list per query."""

    names: Names
    by_ids: bool  # whether names are ids of the table rather than positions
    ids: list[list[int | str]]
    scores: list[Floats]
    vectors: list[Floats] | None
    metric: str
    backend: str
    k: int
    unknown: Names
    unknown_in_filter: Names


def by_ids(served: ServedVersion, ids: list[int | str], options: NeighborOptions) -> Queries:
    """Queries with the vectors of known nodes; unknown ones are left out, and reported."""
    rows = served.ids.rows_of(ids)
    places = np.flatnonzero(rows >= 0)
    known = rows[places]
    return Queries(
        [ids[at] for at in places], served.table.take(known), None if options.include_self else known,
        [ids[at] for at in np.flatnonzero(rows < 0)], "ids", places,
    )  # fmt: skip


def by_vectors(vectors: Floats) -> Queries:
    places = np.arange(len(vectors))
    return Queries(places.tolist(), vectors, None, [], "vectors", places)


def check_answer(
    served: ServedVersion,
    count: int,
    options: NeighborOptions,
    form: str,
    *,
    within: str = "",
    instead: str | None = None,
) -> None:
    """Raises Problem 422 where the answer to `count` queries would be too large.

    Args:
        within: the section of the request that holds the options, with a dot.
        instead: a form of answer that may hold more than JSON.
    """
    if options.include_vectors:
        floats = count * min(options.k, served.info.rows) * served.info.dim
        remedy = "ask for fewer neighbours or queries at a time, or without"
        check_size(floats, form, f"{within}include_vectors", remedy, instead=instead)


def search(served: ServedVersion, queries: Queries, options: NeighborOptions, chosen: Filter | None) -> Neighborhood:
    """Find them.

    Raises:
        Problem: 422, a query is zero, a label is not known, the backend cannot do it.
        Infrastructure: an index cannot be read.
    """
    by_ids = queries.field == "ids"
    among, unknown_in_filter = _among(served, chosen, queries.options)
    if options.metric == "cosine":
        _check_nonzero(queries)
    if not queries.names:
        return Neighborhood(
            [], by_ids, [], [], [] if options.include_vectors else None, options.metric, "exact", options.k,
            queries.unknown, unknown_in_filter,
        )  # fmt: skip
    try:
        found = served.searcher.search(
            queries.vectors, options.k, metric=options.metric, backend=options.backend, among=among,
            exclude=queries.exclude,
        )  # fmt: skip
    except InvalidInput as error:  # all else was checked
        raise invalid(f"{queries.options}backend", str(error)) from None
    there = found.rows >= 0
    if options.min_score is not None:
        with np.errstate(over="ignore"):
            least = np.float32(options.min_score)  # as scores are: one that an answer shows lets its node through
        there &= found.scores >= least
    rows = found.rows[there]
    ends = np.cumsum(there.sum(axis=1))[:-1]
    names = served.ids.ids_of(rows)
    starts, stops = [0, *ends.tolist()], [*ends.tolist(), len(names)]
    ids = [names[start:stop] for start, stop in zip(starts, stops, strict=True)]
    vectors = np.split(served.table.take(rows), ends) if options.include_vectors else None
    return Neighborhood(
        queries.names, by_ids, ids, np.split(found.scores[there], ends), vectors, options.metric, found.backend,
        options.k, queries.unknown, unknown_in_filter,
    )  # fmt: skip


def body(served: ServedVersion, form: str, found: Neighborhood) -> Iterable[Piece]:
    """The answer as JSON or as an Arrow stream."""
    if form == ARROW:
        id_type, dim = served.info.id_type, served.info.dim
        query_type = id_type if found.by_ids else "int"
        columns = found.names, found.ids, found.scores, found.vectors
        return [neighbors_arrow(*columns, query_type=query_type, id_type=id_type, dim=dim)]
    return document(served.headers, members(found) | {"unknown": dumps(list(found.unknown))})


def members(found: Neighborhood) -> dict[str, bytes | Iterator[bytes]]:
    """What an answer in JSON says of neighbours."""
    return {
        "metric": dumps(found.metric), "backend": dumps(found.backend), "k": dumps(found.k),
        "results": results_json(found.names, found.ids, found.scores, found.vectors),
        "unknown_in_filter": dumps(list(found.unknown_in_filter)),
    }  # fmt: skip


def _among(served: ServedVersion, chosen: Filter | None, within: str) -> tuple[Rows | None, Names]:
    """The rows that a filter lets through, ascending, and the ids in it that are not known."""
    if chosen is None:
        return None, []
    if chosen.labels is not None:
        try:
            return served.table.rows_labelled(chosen.labels), []
        except InvalidInput as error:
            raise invalid(f"{within}filter.labels", str(error)) from None
    ids = chosen.ids or []
    rows = served.ids.rows_of(ids)
    return np.unique(rows[rows >= 0]), [ids[at] for at in np.flatnonzero(rows < 0)]


def _check_nonzero(queries: Queries) -> None:
    zero = queries.places[~queries.vectors.any(axis=1)]
    if len(zero):
        why = "is a zero vector, which has no cosine; use metric dot"
        raise not_valid([FieldError(f"{queries.field}.{at}", why) for at in zero[:50].tolist()])
