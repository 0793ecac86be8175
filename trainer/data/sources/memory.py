"""A graph that is in memory, in whatever library's words, as a `Graph`.

Objects are told by what they can do, so none of the libraries is imported or needed:

PyG `Data`               edge_index; x, y, edge_weight and masks where they are there
(nodes, edges)           frames of pandas, polars or Arrow, with the columns that files have;
                         a pandas frame without a column `id` is known by its index
(matrix, x)              a square sparse matrix of scipy, row = source, and features; the matrix alone has none
(edge_index, x)          [2, E] node numbers and features; edge_index alone has none
networkx graph           `weight` of edges; of nodes `x` (a vector each) and `label` where they are there
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data.graph import SPLITS, Graph
from trainer.data.sources.identity import PANDAS_INDEX, Ids, by_id, find, first_missing, stored_labels
from trainer.data.sources.labels import encode_labels
from trainer.errors import InvalidInput

_KINDS = (
    "a PyG Data, a pair of frames (nodes, edges), a sparse matrix or (matrix, x), (edge_index, x), a networkx graph "
    "or a trainer.Graph"
)

_NAMES_NODES = re.compile(r"ids|(.*[_ .-])?(id|key)|node([_ ]?(id|name))?|name", re.IGNORECASE)


@dataclass
class _Parts:
    """What was found in an object, not yet checked."""

    edge_index: Any
    x: Any = None
    ids: Any = None  # none: 0 to N - 1
    labels: Any = None
    weight: Any = None
    directed: bool = False
    num_nodes: int | None = None
    split: Mapping[str, NDArray[Any]] | None = None
    notes: list[str] = field(default_factory=list)


def graph_of(
    given: Any, *, ids: Any = None, labels: Any = None, directed: bool | None = None
) -> tuple[Graph, NDArray[Any]]:
    """The graph, and the ids of its nodes as they were given: the graph's own are whole numbers or text.

    Args:
        given: see above.
        ids: [N], instead of those that `given` has.
        labels: [N] whole numbers or text, instead of those that `given` has; None, NaN, -1 or "" where unknown. Or a
            mapping or a Series of pandas by id; nodes that it does not name have none.
        directed: whether an edge counts in one direction only; none: as a networkx graph says, else false.

    Raises:
        InvalidInput: not one of these objects, or its parts do not fit together.
    """
    if isinstance(given, Graph):
        if ids is not None or labels is not None or directed is not None:
            raise InvalidInput("a trainer.Graph has ids, labels and directions of its own; leave these arguments out.")
        return given, given.ids
    parts = _parts_of(given)
    known = Ids.of(parts.ids if ids is None else ids)
    found = parts.labels if labels is None else labels
    of_nodes = by_id(found)
    y, classes = (None, None) if found is None or of_nodes is not None else encode_labels(stored_labels(found))
    graph = Graph.from_edges(
        _array(parts.edge_index),
        _features(parts.x),
        num_nodes=parts.num_nodes,
        ids=None if known is None else known.stored,
        weight=None if parts.weight is None else _weights(parts.weight),
        y=y,
        classes=classes,
        split=parts.split,
        directed=parts.directed if directed is None else directed,
        notes=parts.notes,
    )
    if of_nodes is not None:
        graph = _labelled(graph, of_nodes)
    return graph, graph.ids if known is None else known.given


def _labelled(graph: Graph, labels: Mapping[Any, Any]) -> Graph:
    """With labels by id.

    Raises:
        InvalidInput: an id is not a node's.
    """
    nodes = list(labels)
    missing = first_missing(_objects(nodes))
    if missing is not None:
        raise InvalidInput(f"labels: the id in place {missing} is missing. Fill it in, or leave its label out.")
    rows = find(graph.ids, _objects(nodes))
    if (rows < 0).any():
        wrong = nodes[int((rows < 0).argmax())]
        raise InvalidInput(
            f"labels: there is no node with the id {wrong!r}; ids here look like {graph.ids[0].item()!r}. "
            "Give labels by id, or a list or array with one per node in order."
        )
    values = _objects([None] * graph.num_nodes)
    values[rows] = _objects(list(labels.values()))
    numbers, classes = encode_labels(stored_labels(values))
    return replace(graph, y=torch.from_numpy(numbers), classes=classes)


def feature_names(given: Any) -> tuple[Any, ...] | None:
    """Names of the features of a graph in memory, where they have any: columns of a frame of nodes."""
    pair = isinstance(given, tuple | list) and len(given) == 2 and is_frame(given[0])
    return tuple(feature_columns(given[0])) or None if pair else None


def feature_columns(nodes: Any) -> list[str]:
    """Columns of a frame of nodes that are features: all others."""
    return [name for name in frame_columns(nodes) if name not in ("id", "label")]


def is_frame(thing: Any) -> bool:
    """Whether it is a table with named columns: pandas, polars, Arrow."""
    return hasattr(thing, "column_names") or (hasattr(thing, "columns") and not hasattr(thing, "tocsr"))


def frame_columns(frame: Any) -> list[str]:
    """Names of its columns."""
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def column(frame: Any, name: str) -> NDArray[Any]:
    """One of its columns."""
    found = frame[name]
    if hasattr(frame, "column_names"):  # Arrow
        return np.asarray(found.to_numpy() if hasattr(found, "chunks") else found.to_numpy(zero_copy_only=False))
    return np.asarray(found)


def node_table(frame: Any) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[np.float32] | None]:
    """Ids, labels and features [N, F] of a frame of nodes.

    Raises:
        InvalidInput: it has no ids, or a column that is not numeric.
    """
    names = frame_columns(frame)
    if "id" in names:
        ids = column(frame, "id")
    elif hasattr(frame, "index") and hasattr(frame, "iloc"):
        ids = np.asarray(frame.index)
        other = next((name for name in names if _NAMES_NODES.fullmatch(str(name))), None)
        if other is not None and ids.dtype.kind in "iu" and np.array_equal(ids, np.arange(len(ids))):
            raise InvalidInput(
                f'nodes: there is no column "id", and "{other}" looks like one. Rename it, or call '
                f'set_index("{other}"); another name if it is a feature.'
            )
    else:
        raise InvalidInput(f'nodes: there is no column "id", only {_listed(names)}. Rename the column with the ids.')
    index = next((name for name in names if PANDAS_INDEX.fullmatch(str(name))), None)
    if index is not None:
        raise InvalidInput(
            f'nodes: column "{index}" looks like the index that pandas writes. Drop it, or name it if it is a feature.'
        )
    labels = column(frame, "label") if "label" in names else None
    features = {name: column(frame, name) for name in feature_columns(frame)}
    wrong = [name for name, values in features.items() if values.dtype.kind not in "biuf"]
    if wrong:
        raise InvalidInput(
            f"nodes: column{'s' * (len(wrong) > 1)} {_listed(wrong)} hold{'s' * (len(wrong) == 1)} no plain numbers. "
            "Every column but id and label is a feature: leave such columns out, or turn them into numbers."
        )
    return ids, labels, _stacked(list(features.values()))


def _stacked(columns: list[NDArray[Any]]) -> NDArray[np.float32] | None:
    return np.stack(columns, 1, dtype=np.float32, casting="unsafe") if columns else None


def edge_table(frame: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Sources, targets and, where they are there, weights of a frame of edges.

    Raises:
        InvalidInput: a column is missing.
    """
    names = frame_columns(frame)
    missing = [name for name in ("source", "target") if name not in names]
    if missing:
        raise InvalidInput(f'edges: there is no column "{missing[0]}", only {_listed(names)}. Rename the right one.')
    weight = column(frame, "weight") if "weight" in names else None
    return column(frame, "source"), column(frame, "target"), weight


def _parts_of(given: Any) -> _Parts:
    if hasattr(given, "node_types") and hasattr(given, "edge_types"):
        raise InvalidInput(
            "this graph has several kinds of nodes or edges, and there is one encoder for all. Give `to_homogeneous()`."
        )
    if hasattr(given, "edge_index"):
        return _of_pyg(given)
    if hasattr(given, "is_directed") and hasattr(given, "nodes"):
        return _of_networkx(given)
    if isinstance(given, tuple | list) and len(given) == 2 and not _is_numbers(given):
        first, second = given
        if is_frame(first):
            return _of_frames(first, second)
        return _of_matrix(first, second) if hasattr(first, "tocsr") else _Parts(first, second)
    if hasattr(given, "tocsr"):
        return _of_matrix(given, None)
    if _is_numbers(given):
        return _Parts(given)
    kind = type(given).__name__
    what = f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}" + (
        f" of {len(given)}" if isinstance(given, tuple | list) else ""
    )
    raise InvalidInput(f"a graph was expected, and this is {what}. Give {_KINDS}.")


def _of_pyg(data: Any) -> _Parts:
    found = {name: getattr(data, name, None) for name in ("x", "y", "edge_weight")}
    labels = None if found["y"] is None else _array(found["y"])
    notes = []
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "biu"):
        notes.append(f"left out y, {labels.dtype} of shape {labels.shape}: labels are one whole number per node")
        labels = None
    masks = {name: getattr(data, f"{name}_mask", None) for name in SPLITS}
    arrays = {name: _array(mask) for name, mask in masks.items() if mask is not None}
    split = None
    if len(arrays) == len(SPLITS) and all(mask.ndim == 1 for mask in arrays.values()):
        split = {name: np.flatnonzero(mask) for name, mask in arrays.items()}
    return _Parts(
        data.edge_index, found["x"], labels=labels, weight=found["edge_weight"], num_nodes=data.num_nodes, split=split,
        notes=notes,
    )  # fmt: skip


def _of_networkx(graph: Any) -> _Parts:
    nodes = list(graph.nodes)
    number = {node: position for position, node in enumerate(nodes)}
    edges = list(graph.edges(data="weight"))
    ends = np.array([[number[source], number[target]] for source, target, _ in edges], dtype=np.int64).reshape(-1, 2)
    weighted = any(weight is not None for *_, weight in edges)
    weight = np.array([1.0 if w is None else w for *_, w in edges], dtype=np.float32) if weighted else None
    x, labels = dict(graph.nodes(data="x")), dict(graph.nodes(data="label"))
    has_x = [node for node in nodes if x[node] is not None]
    if has_x and len(has_x) < len(nodes):
        lacks = next(node for node in nodes if x[node] is None)
        raise InvalidInput(f"node {lacks!r} has no attribute x, and others have one. Give all nodes one, or none.")
    return _Parts(
        ends.T,
        np.array([np.asarray(x[node], dtype=np.float32) for node in nodes]) if has_x else None,
        ids=_objects(nodes),
        labels=_objects([labels[node] for node in nodes]) if any(v is not None for v in labels.values()) else None,
        weight=weight,
        directed=bool(graph.is_directed()),
        num_nodes=len(nodes),
    )


def _of_frames(nodes: Any, edges: Any) -> _Parts:
    if not is_frame(edges):
        raise InvalidInput(f"a frame of nodes comes with a frame of edges, and this is a {type(edges).__name__}.")
    ids, labels, x = node_table(nodes)
    source, target, weight = edge_table(edges)
    known = Ids.of(ids)
    assert known is not None
    ends = []
    for name, column_ in (("source", source), ("target", target)):
        missing = first_missing(column_)
        if missing is not None:
            raise InvalidInput(f"edges, row {missing}: {name} is missing. Fill it in, or leave the edge out.")
        row = find(known.stored, column_)
        if (row < 0).any():
            at = int((row < 0).argmax())
            raise InvalidInput(
                f'edges, row {at}: {name} "{column_[at]}" is not among the nodes. Add it there, or leave the edge out.'
            )
        ends.append(row)
    return _Parts(np.stack(ends), x, ids=ids, labels=labels, weight=weight, num_nodes=len(ids))


def _of_matrix(matrix: Any, x: Any) -> _Parts:
    if matrix.shape[0] != matrix.shape[1]:
        raise InvalidInput(f"the adjacency matrix is {matrix.shape[0]} by {matrix.shape[1]}; it must be square.")
    entries = matrix.tocoo()
    weight = None if (entries.data == 1).all() else entries.data
    return _Parts(np.stack([entries.row, entries.col]), x, weight=weight, num_nodes=matrix.shape[0])


def _is_numbers(given: Any) -> bool:
    """Whether it can be an edge_index: [2, E] of whole numbers."""
    if isinstance(given, tuple | list) and not all(isinstance(row, tuple | list) for row in given):
        return False
    try:
        array = _array(given)
    except ValueError:
        return False
    return array.ndim == 2 and array.shape[0] == 2 and array.dtype.kind in "iu"


def _features(x: Any) -> Any:
    """What `as_features` knows; frames, lists and tensors of other devices as arrays."""
    if x is None or hasattr(x, "tocsr"):
        return x
    if hasattr(x, "detach"):
        return x.detach().cpu()
    return _array(x)


def _weights(weight: Any) -> NDArray[np.float32]:
    array = _array(weight)
    if array.ndim == 2 and array.shape[1] == 1:  # as PyG's transforms leave them
        array = array[:, 0]
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"weights of edges have type {array.dtype}; give numbers.")
    return array.astype(np.float32)


def _array(thing: Any) -> NDArray[Any]:
    return np.asarray(thing.detach().cpu() if hasattr(thing, "detach") else thing)


def _objects(values: list[Any]) -> NDArray[Any]:
    """One object per value, also where these are sequences."""
    array = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):
        array[position] = value
    return array


def _listed(names: list[str]) -> str:
    return ", ".join(map(str, names[:10])) + (", …" if len(names) > 10 else "") if names else "none"
