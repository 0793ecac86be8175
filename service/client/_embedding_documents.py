"""Documents of the service about embeddings: versions, aliases, and results as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float32]]

NodeId = int | str
_SAME = ("version", "state", "dataset", "name", "rows", "dim", "id_type", "metrics", "indexes", "failure")


@dataclass(frozen=True)
class Version:
    """A published table of embeddings. Once ready it never changes.

    Attributes:
        version: its name, the id of the training job it comes from.
        state: publishing, ready or failed.
        dataset: the graph, with its version where it has one.
        rows, dim: shape of the table; None until it is ready. So is id_type, "int" or "str".
        classes: names of the labels that the graph came with; None: it had none, or the version is from a list.
        aliases: names that point to it now.
        metrics: figures of the training run, as in its metrics.json.
        indexes: search indexes by kind, with state and measured recall.
        failure: why there is none, if it failed.
        document: everything the service said; `links` among it.
    """

    version: str
    state: str
    dataset: str
    name: str | None
    rows: int | None
    dim: int | None
    id_type: str | None
    classes: tuple[str, ...] | None
    aliases: tuple[str, ...]
    metrics: Mapping[str, Any]
    indexes: Mapping[str, Mapping[str, Any]]
    failure: str | None
    document: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Alias:
    """A name that points to a version and moves at once for all.

    Attributes:
        seq: how often it was moved.
        automatic: it follows the newest version by itself and cannot be set.
        history: where it pointed, newest first, as far as the service told.
    """

    name: str
    version: str
    seq: int
    automatic: bool
    owner: str | None
    history: tuple[Mapping[str, Any], ...]
    document: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Lookup:
    """vectors: float32 [n, dim], a row for each id asked for, NaN where the version has no such node (`unknown`)."""

    version: str
    vectors: Floats
    unknown: Sequence[NodeId]


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Nearest nodes, best first; entry i of ids, scores and vectors belongs to queries[i].

    Attributes:
        backend: what found them: exact, hnsw or ivf. Scores are exact in any case.
        queries: the ids asked for that are known, or the rows of the vectors asked with.
        ids: a list of ids per query.
        scores: float32 [k] per query, descending.
        vectors: float32 [k, dim] per query; None unless asked for.
        unknown: ids asked for that the version does not have.
        unknown_in_filter: ids to search among that it does not have.
    """

    version: str
    metric: str
    backend: str
    queries: Sequence[NodeId]
    ids: Sequence[Sequence[NodeId]]
    scores: Sequence[Floats]
    vectors: Sequence[Floats] | None
    unknown: Sequence[NodeId]
    unknown_in_filter: Sequence[NodeId]


@dataclass(frozen=True, eq=False)
class Embedded:
    """vectors: float32 [m, dim] of new nodes, in the order given; their neighbours, if asked for."""

    version: str
    ids: Sequence[NodeId | None]
    vectors: Floats
    neighbors: Neighbors | None


@dataclass(frozen=True, eq=False)
class Classified:
    """Labels predicted by a probe on the vectors.

    Attributes:
        accuracy: on the labels given, each predicted by a probe that had not seen it; None if there were too few.
        protocol: how it was trained and judged, in a sentence.
        ids, labels, confidence: a label and its probability for each node predicted; confidence is float32 [n].
    """

    version: str
    classes: Sequence[Any]
    accuracy: float | None
    protocol: Any
    ids: Sequence[NodeId]
    labels: Sequence[Any]
    confidence: Floats
    document: Mapping[str, Any] = field(repr=False)


def version_from(document: Mapping[str, Any]) -> Version:
    """Read a version document; what an older service leaves out is None."""
    same: dict[str, Any] = {name: document.get(name) for name in _SAME}
    classes = document.get("classes")
    return Version(
        **same, classes=None if classes is None else tuple(classes),
        aliases=tuple(document.get("aliases", ())), document=document,
    )  # fmt: skip


def alias_from(document: Mapping[str, Any]) -> Alias:
    """Read an alias document; in lists it is without history."""
    return Alias(
        document["name"], document["version"], document["seq"], document["automatic"], document.get("owner"),
        tuple(document.get("history", ())), document,
    )  # fmt: skip


def neighbors_from(
    pages: Sequence[tuple[int, Mapping[str, Any]]], *, vectors: bool, by_position: bool = False
) -> Neighbors:
    """Join the answers to the batches of one search; each comes with the number of the first query it answers.

    Args:
        vectors: they were asked for.
        by_position: queries are named by their position in the batch, not by id.
    """
    first = pages[0][1]
    results = [(start, found) for start, document in pages for found in document["results"]]
    return Neighbors(
        version=first["version"], metric=first["metric"], backend=first["backend"],
        queries=[found["query"] + start if by_position else found["query"] for start, found in results],
        ids=[found["ids"] for _, found in results], scores=[floats(found["scores"]) for _, found in results],
        vectors=[floats(found["vectors"], len(found["ids"])) for _, found in results] if vectors else None,
        unknown=[node for _, document in pages for node in document.get("unknown", ())],
        unknown_in_filter=first.get("unknown_in_filter", ()),
    )  # fmt: skip


def classified_from(pages: Sequence[Mapping[str, Any]]) -> Classified:
    """Join the answers to the batches of one classification; accuracy and protocol are the same in each."""
    joined = {name: [value for page in pages for value in page[name]] for name in ("ids", "labels", "confidence")}
    document = {**pages[0], **joined}
    return Classified(
        document["version"], document["classes"], document["accuracy"], document["protocol"], document["ids"],
        document["labels"], floats(document["confidence"]), document,
    )  # fmt: skip


def floats(values: Any, rows: int | None = None) -> Floats:
    """Numbers of a JSON document as float32; with `rows`, as a matrix, also if it is empty."""
    import numpy as np

    found = np.asarray(values, dtype=np.float32)
    return found if rows is None else found.reshape(rows, -1) if found.size else found.reshape(rows, 0)
