"""Scores beyond neighbours: recommendations, pairs of nodes, two versions. Computes, so it runs in a thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.api.embeddings.catalog import ServedVersion
from service.api.embeddings.neighbors import Names, Neighborhood, Queries, search
from service.api.embeddings.schemas import NeighborOptions
from service.api.embeddings.score_schemas import Compare, Recommend, Scores
from service.api.problems import invalid

Rows = NDArray[np.int64]
Matrix = NDArray[np.float64]
_TRIES = 8  # for each node of a sample: as many rows are looked at, should few of them be in the other version

_NOTHING = 1e-9  # of a mean of unit vectors: what rounding leaves


def recommended(served: ServedVersion, wanted: Recommend) -> tuple[Neighborhood, list[int | str], list[float]]:
    """What was found, and of it ids and scores without the examples.

    Raises:
        Problem: 422, no example is known, or they cancel out.
    """
    positive, negative = (served.ids.rows_of(ids) for ids in (wanted.positive, wanted.negative))
    asked = [*wanted.positive, *wanted.negative]
    rows = np.concatenate([positive, negative])
    if not (positive >= 0).any():
        raise invalid("positive", "none of these ids is in this version; give one that is")
    query = _mean(served, positive) - _mean(served, negative)
    if np.abs(query).max() < _NOTHING:
        what = "cancel out the positive ones" if wanted.negative else "have no direction: their vectors are zero"
        raise invalid("negative" if wanted.negative else "positive", f"these examples {what}; give others")
    examples = set(served.ids.ids_of(np.unique(rows[rows >= 0])))
    queries = Queries(
        [0], query.astype(np.float32)[None], None, [asked[at] for at in np.flatnonzero(rows < 0)], "positive",
        np.zeros(1, np.int64),
    )  # fmt: skip
    options = NeighborOptions(k=wanted.k + len(examples), backend=wanted.backend, min_score=wanted.min_score)
    found = search(served, queries, options, wanted.filter)
    pairs = zip(found.ids[0], found.scores[0].tolist(), strict=True)
    kept = [(node, score) for node, score in pairs if node not in examples][: wanted.k]
    return found, [node for node, _ in kept], [score for _, score in kept]


def pairwise(served: ServedVersion, wanted: Scores) -> tuple[Names, Names, NDArray[np.float32], Names]:
    """Known ids, known others, their scores [n, m], and the unknown of both."""
    given = [wanted.ids] if wanted.others is None else [wanted.ids, wanted.others]
    rows = [served.ids.rows_of(ids) for ids in given]
    named = [[ids[at] for at in np.flatnonzero(found >= 0)] for ids, found in zip(given, rows, strict=True)]
    unknown = [ids[at] for ids, found in zip(given, rows, strict=True) for at in np.flatnonzero(found < 0)]
    vectors = [_vectors(served, found[found >= 0], is_unit=wanted.metric == "cosine") for found in rows]
    limit = np.finfo(np.float32).max
    scores = np.clip(vectors[0] @ vectors[-1].T, -limit, limit).astype(np.float32)
    return named[0], named[-1], scores, list(dict.fromkeys(unknown))


def compared(
    served: ServedVersion, other: ServedVersion, wanted: Compare
) -> tuple[Names, NDArray[np.float64], NDArray[np.float64]]:
    """The sampled nodes, and of each the overlap of its neighbours and its drift (CompareDocument).

    Raises:
        Problem: 422, the versions have hardly a node in common.
    """
    small, large = (served, other) if served.info.rows <= other.info.rows else (other, served)
    total = small.info.rows
    drawn = np.random.default_rng(wanted.seed).choice(total, min(total, wanted.sample * _TRIES), replace=False)
    found = large.ids.rows_of(small.ids.ids_of(drawn))
    usable = (found >= 0) & (small.table.inverse_norms[drawn] > 0)
    usable[usable] &= large.table.inverse_norms[found[usable]] > 0  # a zero vector has no cosine
    places = np.flatnonzero(usable)[: wanted.sample]
    if len(places) < 3:  # two have one cosine, of which nothing can be said
        raise invalid("other", "the two versions have hardly a node in common; compare versions of the same graph")
    rows, others = (drawn[places], found[places]) if small is served else (found[places], drawn[places])
    near = [_neighbors(version, own, wanted.k) for version, own in ((served, rows), (other, others))]
    overlap = np.array([len(a & b) / max(1, len(a), len(b)) for a, b in zip(*near, strict=True)])
    first, second = (_profiles(version, own) for version, own in ((served, rows), (other, others)))
    drift = 1.0 - np.clip((first * second).sum(axis=1), -1.0, 1.0)
    return served.ids.ids_of(rows), overlap, drift


def _mean(served: ServedVersion, rows: Rows) -> NDArray[np.float64]:
    """Of the unit vectors of known rows; zero if there are none."""
    known = rows[rows >= 0]
    return _vectors(served, known, is_unit=True).mean(axis=0) if len(known) else np.zeros(served.info.dim)


def _vectors(served: ServedVersion, rows: Rows, *, is_unit: bool) -> Matrix:
    """float64 [n, dim]; of length 1 if `is_unit`, where those that count as zero stay zero."""
    found = served.table.take(rows).astype(np.float64)
    if is_unit:
        found[served.table.inverse_norms[rows] == 0] = 0.0
        norms = np.sqrt((found * found).sum(axis=1, keepdims=True))
        found = np.divide(found, norms, out=np.zeros_like(found), where=norms > 0)
    return found


def _neighbors(served: ServedVersion, rows: Rows, k: int) -> list[set[str]]:
    """The ids of the k nearest nodes of each row, as text: 42 and "42" are the same."""
    found = served.searcher.search(served.table.take(rows), k, exclude=rows)
    return [{str(node) for node in served.ids.ids_of(near[near >= 0])} for near in found.rows]


def _profiles(served: ServedVersion, rows: Rows) -> Matrix:
    """Each row's cosines to the others [n, n - 1], centred and of length 1, so that products are correlations."""
    unit = _vectors(served, rows, is_unit=True)
    count = len(rows)
    cosines = (unit @ unit.T)[~np.eye(count, dtype=bool)].reshape(count, count - 1)
    if count > 2:  # two numbers at least, or there is nothing to centre
        cosines = cosines - cosines.mean(axis=1, keepdims=True)
    norms = np.sqrt((cosines * cosines).sum(axis=1, keepdims=True))
    return np.divide(cosines, norms, out=np.zeros_like(cosines), where=norms > 0)
