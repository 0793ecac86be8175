"""New nodes as people hold them, as the arrays of `trainer.inference.new_nodes`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import structural
from trainer.data.graph import Graph
from trainer.data.sources.memory import (
    column,
    edge_table,
    feature_columns,
    frame_columns,
    is_frame,
    node_table,
)
from trainer.errors import InvalidInput

_BOTH, _INTO, _OUT = 0, 1, 2  # trainer.inference.extended
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Known:
    """The graph that was trained on."""

    graph: Graph
    rows: Mapping[Hashable, int]
    ids: NDArray[Any]
    feature_names: tuple[str, ...] | None = None  # in the order of columns; None: not known

    def row(self, node: Hashable, where: str) -> int:
        """Raises InvalidInput, saying where, if there is no such node."""
        row = self.rows.get(node) if isinstance(node, Hashable) else None
        if row is None:
            raise InvalidInput(f"{where}: there is no node with the id {node!r} in the graph that was trained on.")
        return row


def request(known: Known, new: Any, neighbors: Sequence[Sequence[Hashable]] | None) -> tuple[int, Arrays]:
    """How many new nodes, and what is said of them.

    Raises:
        InvalidInput: naming what does not fit.
    """
    if isinstance(new, tuple | list) and len(new) == 2 and is_frame(new[0]):
        if neighbors is not None:
            raise InvalidInput("the frame of edges says what new nodes are linked to; leave `neighbors` out.")
        return _of_frames(known, *new)
    if new is None and neighbors is None:
        raise InvalidInput("give the features of the new nodes, or for a graph without features their neighbors.")
    if is_frame(new):
        new = _by_name(known, frame_columns(new), np.stack([column(new, name) for name in frame_columns(new)], 1))
    x = _features(known, new, len(neighbors or ()))
    linked: Sequence[Sequence[Hashable]] = [()] * len(x) if neighbors is None else neighbors
    if len(linked) != len(x):
        raise InvalidInput(f"there are {len(x)} rows of features and {len(linked)} lists of neighbors. Give one each.")
    if any(isinstance(each, str) for each in linked):
        raise InvalidInput('neighbors is a list of ids for each new node: [["a", "b"], ["c"]].')
    ends = [
        (node, known.row(_plain(other), f"neighbors[{node}]")) for node, each in enumerate(linked) for other in each
    ]
    direction = _INTO if known.graph.is_directed() else _BOTH
    return len(x), _arrays(x, [(node, other, direction, 1.0) for node, other in ends])


def _of_frames(known: Known, nodes: Any, edges: Any) -> tuple[int, Arrays]:
    ids, _, x = node_table(nodes)
    if x is not None:
        x = _by_name(known, feature_columns(nodes), x)
    news = {node: place for place, node in enumerate(ids.tolist())}
    if len(news) < len(ids):
        raise InvalidInput("nodes: an id is used twice. Give each new node one row.")
    there = next((node for node in news if node in known.rows), None)
    if there is not None:
        raise InvalidInput(f"nodes: {there!r} is in the graph that was trained on. Leave it out, or give a new id.")
    n, directed = known.graph.num_nodes, known.graph.is_directed()
    links = []
    source, target, weight = edge_table(edges)
    weights = np.ones(len(source)) if weight is None else weight
    for row, (start, end, w) in enumerate(zip(source.tolist(), target.tolist(), weights.tolist(), strict=True)):
        if start in news:
            other = n + news[end] if end in news else known.row(end, f"edges, row {row}")
            links.append((news[start], other, _OUT if directed else _BOTH, w))
        elif end in news:
            links.append((news[end], known.row(start, f"edges, row {row}"), _INTO if directed else _BOTH, w))
        else:
            raise InvalidInput(f"edges, row {row}: neither {start!r} nor {end!r} is a new node. Leave such edges out.")
    return len(ids), _arrays(_features(known, x, len(ids)), links)


def _by_name(known: Known, names: Sequence[Any], x: NDArray[Any]) -> NDArray[Any]:
    """Columns in the graph's order; as they are where the graph's or the new nodes' have no names.

    Raises:
        InvalidInput: a column is missing, or the graph has none of that name.
    """
    wanted = known.feature_names
    if wanted is None or list(names) == list(range(len(names))):
        return x
    missing = [str(name) for name in wanted if name not in names]
    extra = [str(name) for name in names if name not in wanted]
    if missing:
        raise InvalidInput(f"the new nodes lack the features {', '.join(missing[:10])}. Add these columns.")
    if extra:
        raise InvalidInput(f"the graph has no features {', '.join(extra[:10])}. Leave these columns out.")
    return x[:, [list(names).index(name) for name in wanted]]


def _features(known: Known, x: Any, m: int) -> NDArray[np.float32]:
    if x is None:
        if structural.NOTE not in known.graph.notes:
            raise InvalidInput(f"give the {known.graph.num_features} features of each new node, in the graph's order.")
        return structural.of_new_nodes(m)
    if hasattr(x, "toarray"):
        x = x.toarray()
    array = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x, dtype=np.float32)
    if array.ndim == 1:
        array = array[None]
    return array


def _arrays(x: NDArray[np.float32], links: list[tuple[int, int, int, float]]) -> Arrays:
    node, other, direction, weight = zip(*links, strict=True) if links else ((), (), (), ())
    return {
        "features": x, "edge_node": np.array(node, dtype=np.int64), "edge_other": np.array(other, dtype=np.int64),
        "edge_direction": np.array(direction, dtype=np.int64), "edge_weight": np.array(weight, dtype=np.float32),
    }  # fmt: skip


def _plain(node: Any) -> Any:
    return node.item() if isinstance(node, np.generic) else node
