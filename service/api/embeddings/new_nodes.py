"""New nodes, and labels of known ones: from a checked body to the arrays that the encoder's process takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.api.embeddings.catalog import ServedVersion
from service.api.embeddings.schemas import LONGEST_LABEL, MOST_CLASSES, Classify, Edge, Embed, SparseFeatures
from service.api.problems import FieldError, invalid, not_valid

_EDGE = re.compile(r"\bedge(?:_([a-z]+)\[(\d{1,9})\]| (\d{1,9})\b)")
_EDGE_FIELDS = ("weight", "direction", "node")
_NODE = re.compile(r"\bnode (\d{1,9})\b")
_DIRECTIONS = {"both": 0, "in": 1, "out": 2}

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class NewNodes:
    """New nodes as `trainer.inference` takes them."""

    ids: list[int | str | None]
    arrays: Arrays
    replaces: Rows  # [m] row of the known node that each stands for, -1 none


def new_nodes(served: ServedVersion, body: Embed) -> NewNodes:
    """The arrays of a body.

    Raises:
        Problem: 422, an edge leads nowhere, an id is there twice, features differ in number.
    """
    nodes = body.nodes
    places: dict[str, int] = {}  # 42 and "42" are the same id
    for at, node in enumerate(nodes):
        if node.id is not None and places.setdefault(str(node.id), at) != at:
            raise invalid(f"nodes.{at}.id", f"is the same as that of nodes.{places[str(node.id)]}")
    names = [node.id for node in nodes if node.id is not None]
    replaces = np.full(len(nodes), -1, np.int64)
    replaces[[at for at, node in enumerate(nodes) if node.id is not None]] = served.ids.rows_of(names)
    arrays = _features(body) | _edges(served, body, places) | {"replaces": replaces}
    return NewNodes([node.id for node in nodes], arrays, replaces)


def _features(body: Embed) -> Arrays:
    """float32 [m, F], or the three arrays of a sparse matrix where any node's features are sparse.

    How many features the others of such a matrix have goes with it: only the encoder knows how many there must be.
    """
    given = [node.features for node in body.nodes]
    dense = [features for features in given if not isinstance(features, SparseFeatures)]
    for at, features in enumerate(given):
        if features == []:
            raise invalid(f"nodes.{at}.features", "is empty; give as many values as the nodes of the graph have")
        if not isinstance(features, SparseFeatures) and len(features) != len(dense[0]):
            raise invalid(f"nodes.{at}.features", f"has {len(features)} values, but other nodes have {len(dense[0])}")
    if len(dense) == len(given):
        matrix = _finite(np.array(dense, np.float64))
        _check_finite(np.asarray(np.isfinite(matrix).all(axis=1)))
        return {"features": matrix}
    indices: list[int] = []
    values: list[float] = []
    starts = [0]
    for features in given:
        if isinstance(features, SparseFeatures):
            indices += features.indices
            values += features.values
        else:
            indices += range(len(features))
            values += features
        starts.append(len(indices))
    numbers, indptr = _finite(np.array(values, np.float64)), np.array(starts, np.int64)
    wrong = np.searchsorted(indptr, np.flatnonzero(~np.isfinite(numbers)), side="right") - 1
    good = np.ones(len(given), np.bool_)
    good[wrong] = False
    _check_finite(good)
    widths = [-1 if isinstance(features, SparseFeatures) else len(features) for features in given]
    return {
        "indptr": indptr, "indices": np.array(indices, np.int64), "values": numbers,
        "widths": np.array(widths, np.int64),
    }  # fmt: skip


def _finite(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _check_finite(good: NDArray[np.bool_]) -> None:
    wrong = np.flatnonzero(~good)[:50].tolist()
    if wrong:
        raise not_valid([FieldError(f"nodes.{at}.features", "holds a number too large for float32") for at in wrong])


def _edges(served: ServedVersion, body: Embed, places: dict[str, int]) -> Arrays:
    rows = served.info.rows
    ends = [
        (at, edge if isinstance(edge, Edge) else Edge(node=edge))
        for at, node in enumerate(body.nodes)
        for edge in node.edges
    ]
    others = served.ids.rows_of([edge.node for _, edge in ends])
    for number, (_, edge) in enumerate(ends):
        place = places.get(str(edge.node))
        if place is not None:
            others[number] = rows + place
        elif others[number] < 0:
            raise invalid(_place(body, number), "no known or new node has this id")
    return {
        "edge_node": np.array([at for at, _ in ends], np.int64), "edge_other": others,
        "edge_weight": np.array([edge.weight for _, edge in ends], np.float32),
        "edge_direction": np.array([_DIRECTIONS[edge.direction] for _, edge in ends], np.int8),
    }  # fmt: skip


def _place(body: Embed, number: int) -> str:
    """Where the edge of this number stands."""
    for at, node in enumerate(body.nodes):
        if number < len(node.edges):
            return f"nodes.{at}.edges.{number}"
        number -= len(node.edges)
    raise AssertionError


def blamed_field(body: Embed, message: str) -> FieldError:
    """The field that is meant where the other process names its arrays, an edge or a node by its number."""
    edge, node = _EDGE.search(message), _NODE.search(message)
    if edge is not None and (number := int(edge[2] or edge[3])) < sum(len(node.edges) for node in body.nodes):
        place = _place(body, number)
        if edge[1] in _EDGE_FIELDS:
            place = f"{place}.{edge[1]}"
        return FieldError(place, message.removeprefix(edge[0]).strip())
    part = ".features" if "feature" in message else ""
    if node is not None and int(node[1]) < len(body.nodes):
        return FieldError(f"nodes.{node[1]}{part}", message)
    return FieldError(f"nodes.0{part}" if part else "nodes", message)  # all have equally many


@dataclass(frozen=True)
class Labelled:
    """Labels as `trainer.inference` takes them."""

    classes: list[int | str]
    arrays: Arrays


def labelled(served: ServedVersion, body: Classify) -> Labelled:
    """The arrays of a body.

    Raises:
        Problem: 422, an id is not known, or has two labels, or there is only one label, or too many or too long ones.
    """
    if len({type(label) for label in body.labels}) > 1:
        raise invalid("labels", "should be all text or all whole numbers")
    distinct = set(body.labels)
    if unusable := {label for label in distinct if not _is_usable(label)}:
        at = next(at for at, label in enumerate(body.labels) if label in unusable)
        raise invalid(f"labels.{at}", f"should have at most {LONGEST_LABEL} characters, or be a 64-bit whole number")
    if not 2 <= len(distinct) <= MOST_CLASSES:
        raise invalid(
            "labels", f"should be of at least two classes and at most {MOST_CLASSES:,}, not {len(distinct):,}"
        )
    classes = sorted(distinct)
    numbers = {label: number for number, label in enumerate(classes)}
    rows = _known(served, body.ids, "ids")
    labels = np.array([numbers[label] for label in body.labels], np.int64)
    unique, first, back = np.unique(rows, return_index=True, return_inverse=True)
    twice = np.flatnonzero(labels[first][back] != labels)
    if len(twice):
        raise invalid(f"ids.{twice[0]}", "has two different labels")
    arrays = {"rows": unique, "labels": labels[first]}
    if body.predict is not None:
        arrays["predict"] = _known(served, body.predict, "predict")
    return Labelled(classes, arrays)


def _is_usable(label: int | str) -> bool:
    """Whether a file could have this label: answers repeat it for every node, as wide as the widest."""
    return len(label) <= LONGEST_LABEL if isinstance(label, str) else -(2**63) <= label < 2**63


def _known(served: ServedVersion, ids: list[int | str], field: str) -> Rows:
    rows = served.ids.rows_of(ids)
    wrong = np.flatnonzero(rows < 0)[:50].tolist()
    if wrong:
        raise not_valid([FieldError(f"{field}.{at}", "there is no node with this id") for at in wrong])
    return rows
