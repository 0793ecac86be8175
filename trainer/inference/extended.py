"""The part of a graph, extended by new nodes, that their embeddings depend on: all in-edges within k - 1 hops.

The extended graph has T = N + m *places*: a known node has its own number, a new node N + j, or the number of the known
node that it replaces; that node's edges are then gone. An edge into v is the key v · T + source, as in
trainer/data/edges.py, so that sorted keys are compressed rows in the order in which the trainer would store them.

D = 1 + weighted in-degree is counted on the whole extended graph: also for the outermost nodes, whose in-edges are read
for that (only where weights or replaced nodes make it necessary) but not kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.edges import merge
from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.export.sums import adjacency, parts
from trainer.files.mapped import take
from trainer.nn.sparse import row_of_entry

MOST_ENTRIES = 20_000_000  # edges read for one request; about 40 bytes each while they are sorted
_AT_ONCE = 1_000_000  # edges read at a time
_TOUCH = 8 << 20  # bytes of a mapped array in memory while scattered rows are read
_BOTH, _INTO, _OUT = 0, 1, 2

Ints = NDArray[np.int64]
Part = tuple[Ints, NDArray[np.float32] | None]  # keys and weights of edges


@dataclass(frozen=True)
class NewEdges:
    """The edges that come with m new nodes, by key, ascending and without duplicates or self loops."""

    key: Ints  # [E]
    weight: NDArray[np.float32] | None  # [E]; None where the graph has none
    place: Ints  # [m] of each new node
    replaced: Ints  # ascending known nodes that are taken out
    places: int  # T

    def into(self, nodes: Ints) -> Part:
        """Keys and weights of the edges into ascending nodes."""
        at = np.flatnonzero(_contains(nodes, self.key // self.places))
        return self.key[at], None if self.weight is None else self.weight[at]


@dataclass(frozen=True)
class Neighbourhood:
    """What the new nodes depend on, numbered from 0 by ascending place."""

    places: Ints  # [n]
    graph: Graph  # n nodes; its rows of the outermost nodes are empty, and it has no features
    degree: Tensor  # [n] of the whole extended graph: int64, or float64 where there are weights
    levels: list[Tensor]  # ascending local nodes within k, k - 1, ..., 0 hops of the new nodes


def new_edges(
    graph: Graph, m: int, node: Ints, other: Ints, weight: NDArray[np.float32], direction: Ints, replaces: Ints
) -> NewEdges:
    """Check the edges of a request and put them in order.

    node [E]: 0 to m - 1; other [E]: a known node, or N + j for new node j; direction [E]: 0 both ways, 1 into `node`,
    2 out of it; replaces [m]: a known node or -1. Self loops are removed (the encoder adds its own), duplicates merged,
    adding weights, as for any graph.

    Raises:
        InvalidInput: naming the array and the first wrong position.
    """
    n = graph.num_nodes
    for name, array in (("edge_other", other), ("edge_weight", weight), ("edge_direction", direction)):
        if array.shape != node.shape or array.ndim != 1:
            raise InvalidInput(f"{name} has shape {array.shape}, edge_node {node.shape}; give one value per edge.")
    if replaces.shape != (m,):
        raise InvalidInput(f"replaces has shape {replaces.shape} for {m} nodes; give -1 or a known node for each.")
    _check_range("edge_node", node, 0, m, f"new nodes are 0 to {m - 1}")
    _check_range("edge_other", other, 0, n + m, f"known nodes are 0 to {n - 1}, new ones {n} to {n + m - 1}")
    _check_range("edge_direction", direction, 0, 3, "0 means both ways, 1 into the new node, 2 out of it")
    _check_range("replaces", replaces, -1, n, f"known nodes are 0 to {n - 1}, -1 means none")
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if graph.weight is None:
        wrong |= weight != 1
    if wrong.any():
        i = int(wrong.argmax())
        needed = "This graph has no weights: leave them out" if graph.weight is None else "Give a number of at least 0"
        raise InvalidInput(f"edge_weight[{i}] is {weight[i]}. {needed}.")
    replaced, count = np.unique(replaces[replaces >= 0], return_counts=True)
    if (count > 1).any():
        raise InvalidInput(f"node {replaced[count.argmax()]} is replaced twice. Send each node once.")
    place = np.where(replaces >= 0, replaces, n + np.arange(m))
    ours, theirs = place[node], np.where(other >= n, place[np.maximum(other - n, 0)], other)
    if graph.weight is not None:
        _refuse_mutual(ours, theirs, direction, n + m)
    into, out = direction != _OUT, direction != _INTO
    source, target = np.concatenate([theirs[into], ours[out]]), np.concatenate([ours[into], theirs[out]])
    weights = np.concatenate([weight[into], weight[out]])
    proper = source != target
    key = target[proper] * (n + m) + source[proper]
    key, merged = merge(key, None if graph.weight is None else weights[proper])
    return NewEdges(key, merged, place, replaced, n + m)


def neighbourhood(graph: Graph, edges: NewEdges, hops: int) -> Neighbourhood:
    """Read what new nodes depend on through `hops` layers.

    Raises:
        InvalidInput: that is more than MOST_ENTRIES edges.
    """
    budget = _Budget(hops)
    reached = frontier = np.sort(edges.place)
    levels: list[Ints] = [reached]
    found: list[Part] = []
    for _ in range(hops):
        read = [*_stored_into(graph, edges, frontier, budget), edges.into(frontier)]
        found += read
        sources = _distinct(np.concatenate([_distinct(key % edges.places) for key, _ in read]))
        frontier = sources[~_contains(reached, sources)]
        reached = np.sort(np.concatenate([reached, frontier]))
        levels.insert(0, reached)
    local = _compressed(graph, edges, found, reached)
    degree = _inner_degrees(local)
    degree[torch.from_numpy(np.searchsorted(reached, frontier))] = _outer_degrees(graph, edges, frontier, budget)
    return Neighbourhood(
        reached, local, degree, [torch.from_numpy(np.searchsorted(reached, level)) for level in levels]
    )


class _Budget:
    """How many edges a request has read."""

    def __init__(self, hops: int):
        self.hops, self.used = hops, 0

    def take(self, count: int) -> None:
        self.used += count
        if self.used > MOST_ENTRIES:
            raise InvalidInput(
                f"the new nodes depend on more than {MOST_ENTRIES:,} edges of the graph ({self.hops} hops from them). "
                "Send fewer nodes at a time, or leave out edges to nodes with very many neighbours."
            )


def _stored(edges: NewEdges, nodes: Ints, num_nodes: int) -> Ints:
    """Those of ascending places whose in-edges are in the stored graph."""
    known = nodes[: np.searchsorted(nodes, num_nodes)]
    return known[~_contains(edges.replaced, known)]


def _stored_into(graph: Graph, edges: NewEdges, nodes: Ints, budget: _Budget) -> Iterator[Part]:
    """Keys and weights of the stored edges into ascending places, less those from replaced nodes; by parts."""
    known = torch.from_numpy(_stored(edges, nodes, graph.num_nodes))
    if not len(known):
        return
    budget.take(int(_in_edges(graph, known).sum()))
    for part in parts(adjacency(graph), known, _AT_ONCE):
        target = known[part.first + row_of_entry(part.pointer)]
        key, source = (target * edges.places + part.columns).numpy(), part.columns.numpy()
        weight = None if part.values is None else part.values.numpy()
        if len(edges.replaced):
            kept = ~_contains(edges.replaced, source)
            key, weight = key[kept], None if weight is None else weight[kept]
        yield key, None if weight is None else weight.copy()  # a slice of a map would keep its pages


def _in_edges(graph: Graph, nodes: Tensor) -> Tensor:
    """How many are stored into each of ascending known nodes."""
    return take(graph.indptr, nodes + 1, graph.release, _TOUCH) - take(graph.indptr, nodes, graph.release, _TOUCH)


def _compressed(graph: Graph, edges: NewEdges, found: list[Part], places: Ints) -> Graph:
    """The graph of these edges, its nodes numbered by their position in `places`; empties `found`."""
    key = np.concatenate([part[0] for part in found])
    weight = None if graph.weight is None else np.concatenate([part[1] for part in found if part[1] is not None])
    found.clear()
    if weight is None:
        key.sort()
    else:
        order = np.argsort(key, kind="stable")
        key, weight = key[order], weight[order]
    indptr = np.searchsorted(key, np.append(places, edges.places) * edges.places)
    source = np.searchsorted(places, key % edges.places)
    return Graph(
        name=graph.name,
        indptr=torch.from_numpy(indptr),
        indices=torch.from_numpy(source),
        x=torch.empty(len(places), 0),
        ids=places,
        weight=None if weight is None else torch.from_numpy(weight),
    )


def _inner_degrees(local: Graph) -> Tensor:
    if local.weight is None:
        return local.indptr.diff() + 1
    degree = torch.ones(local.num_nodes, dtype=torch.float64)
    return degree.index_add_(0, row_of_entry(local.indptr), local.weight.double())


def _outer_degrees(graph: Graph, edges: NewEdges, nodes: Ints, budget: _Budget) -> Tensor:
    """1 + weighted in-degree of ascending known nodes that are not replaced.  [n]."""
    if graph.weight is None and not len(edges.replaced):
        degree = _in_edges(graph, torch.from_numpy(nodes)) + 1 if len(nodes) else torch.ones(0, dtype=torch.int64)
        read: Iterable[Part] = [edges.into(nodes)]
    else:
        degree = torch.ones(len(nodes), dtype=torch.int64 if graph.weight is None else torch.float64)
        read = itertools.chain(_stored_into(graph, edges, nodes, budget), [edges.into(nodes)])
    for key, weight in read:
        at = torch.from_numpy(np.searchsorted(nodes, key // edges.places))
        values = torch.ones(len(key)) if weight is None else torch.from_numpy(weight)
        degree.index_add_(0, at, values.to(degree.dtype))
    return degree


def _distinct(values: Ints) -> Ints:
    """Ascending, each once. (np.unique hashes, which takes seconds for a million consecutive numbers.)"""
    return merge(values, None)[0]


def _contains(ascending: Ints, values: Ints) -> NDArray[np.bool_]:
    """Whether each value is among the ascending ones."""
    if not len(ascending):
        return np.zeros(len(values), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[at] == values
    return found


def _check_range(name: str, array: Ints, low: int, high: int, meaning: str) -> None:
    wrong = (array < low) | (array >= high)
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidInput(f"{name}[{i}] is {array[i]}; {meaning}.")


def _refuse_mutual(ours: Ints, theirs: Ints, direction: Ints, places: int) -> None:
    """An edge both ways that each of two new nodes names: its weight would count twice, which nobody means."""
    both = (direction == _BOTH) & (ours != theirs)
    key, reverse = ours[both] * places + theirs[both], theirs[both] * places + ours[both]
    twice = np.isin(key, reverse)
    if twice.any():
        i = int(np.flatnonzero(both)[twice.argmax()])
        raise InvalidInput(
            f"edge {i}: both of its new nodes name it, so its weight would count twice. Give it at one of them."
        )
