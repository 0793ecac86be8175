"""Our own neighbour sampler: vectorised over a CSR by target, in numpy, with nothing to compile.

A batch starts with its seeds. Hop by hop, every node found in the hop before takes up to k of its in-edges, uniformly
and without replacement; sources met for the first time are the nodes of the next hop. Conventions are those of PyG's
`NeighborSampler` (directional, not disjoint): where lists are complete, the output is the same, element for element.

Draws are hashes, not a stream: which in-edges node i takes depends on (key, i, k) alone. With one fan-out for all hops
a node therefore has the same neighbours in whatever batch, worker or process it turns up.

Choosing k of d is Floyd's algorithm: draw j = 0 … k-1 picks r_j, uniform in [0, d-k+j], unless r_j is in the set
already; then it picks d-k+j, which cannot be. All draws of all nodes are resolved at once: r_j is in the set before
draw j if it repeats an earlier draw (every draw's value ends up in the set), or if it is d-k+i for an earlier draw i
that had to give way. The first is found by sorting each node's k draws, the second by following such references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NodeSamplerInput, SamplerOutput

from trainer.data.graph import Graph
from trainer.data.seeds import BITS, hashed_array
from trainer.errors import InvalidInput

Ints = NDArray[np.int64]
DRAW_BITS = 14  # of a hash's index; the rest is the node
MAX_DRAWS = 1 << DRAW_BITS
CHUNK = 1 << 15  # draws resolved at a time: stays in cache and bounds temporaries. Changes no result


class CsrSampler(BaseSampler):
    """Samples in-neighbourhoods of `graph`, whose arrays are read where they are, memory-mapped or not.

    Keeps one integer per node between batches (4 bytes, paged in where touched). One thread at a time.

    Args:
        num_neighbors: in-edges per node and hop, -1 for all.
        key: names the draws, see `trainer.data.seeds.key`; set it anew for each batch that should draw differently.

    Raises:
        InvalidInput: a fan-out that is neither -1 nor from 1 to MAX_DRAWS.
    """

    def __init__(self, graph: Graph, num_neighbors: Sequence[int], key: int = 0) -> None:
        self.num_neighbors = check_num_neighbors(num_neighbors)
        self.key = key
        self._indptr: Ints = graph.indptr.numpy()
        self._indices: Ints = graph.indices.numpy()
        # Local number of each node in the current batch plus one; 0 = not in it. Zeros cost no memory until touched.
        self._place = np.zeros(graph.num_nodes, dtype=np.int32 if graph.num_nodes < 2**31 else np.int64)

    def sample_from_nodes(self, inputs: NodeSamplerInput) -> SamplerOutput:
        """One batch: `node` [n] global ids, seeds first, then hop by hop in the order they were met; `row` and `col`
        [e] local sources and targets; `edge` [e] positions in `graph.indices`. Edges are ordered by hop and target.

        Raises:
            InvalidInput: seeds that are not in the graph, or the same seed twice.
        """
        seeds: Ints = inputs.node.numpy().astype(np.int64, copy=False)
        self._check(seeds)
        try:
            found, edges, nodes_per_hop, edges_per_hop = self._sample(seeds)
        except BaseException:  # whatever stopped it, the next batch must find an empty map
            self._place.fill(0)
            raise
        row, col, edge = (_joined(parts) for parts in edges)
        return SamplerOutput(
            node=_joined(found),
            row=row,
            col=col,
            edge=edge,
            num_sampled_nodes=nodes_per_hop,
            num_sampled_edges=edges_per_hop,
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, inputs: EdgeSamplerInput, neg_sampling: Any = None) -> SamplerOutput:
        """Refused: nothing here trains on pairs of nodes, but PyG wants every sampler to answer."""
        raise InvalidInput("CsrSampler starts from nodes only. Use sample_from_nodes with both ends of the edges.")

    def _sample(self, seeds: Ints) -> tuple[list[Ints], tuple[list[Ints], ...], list[int], list[int]]:
        self._place[seeds] = np.arange(1, len(seeds) + 1)
        found, rows, columns, edges = [seeds], [], [], []
        total = len(seeds)
        for k in self.num_neighbors:
            targets = found[-1]
            edge, counts = choose_edges(self._indptr, targets, k, self.key)
            source = self._indices[edge]
            columns.append(np.repeat(np.arange(total - len(targets), total), counts))
            edges.append(edge)
            found.append(self._place_new(source, total))
            rows.append(self._place[source].astype(np.int64) - 1)
            total += len(found[-1])
        for nodes in found:
            self._place[nodes] = 0
        return found, (rows, columns, edges), [len(nodes) for nodes in found], [len(edge) for edge in edges]

    def _place_new(self, source: Ints, total: int) -> Ints:
        """Give the sources without a place the places from `total` on, in order of appearance, and return them."""
        unplaced = source[np.flatnonzero(self._place[source] == 0)]
        # Write each appearance's number from the last to the first. Of repeated ones the last written stays, so a node
        # ends up with its first appearance, and that is where number and map agree: no sort needed.
        number = np.arange(len(unplaced), dtype=self._place.dtype)
        self._place[unplaced[::-1]] = number[::-1]
        new = unplaced[np.flatnonzero(self._place[unplaced] == number)]
        self._place[new] = np.arange(total + 1, total + 1 + len(new))
        return new

    def _check(self, seeds: Ints) -> None:
        num_nodes = len(self._place)
        if len(seeds) and (seeds.min() < 0 or seeds.max() >= num_nodes):
            raise InvalidInput(f"seeds range from {seeds.min()} to {seeds.max()}; nodes are 0 to {num_nodes - 1}.")
        number = np.arange(len(seeds))
        self._place[seeds] = number
        twice = np.flatnonzero(self._place[seeds] != number)
        self._place[seeds] = 0
        if len(twice):
            raise InvalidInput(f"seed {seeds[twice[0]]} is in the batch twice. Give each node once.")


def check_num_neighbors(num_neighbors: Sequence[int]) -> tuple[int, ...]:
    """The fan-outs, one per hop.

    Raises:
        InvalidInput: none, or one that is neither -1 nor from 1 to MAX_DRAWS.
    """
    if not num_neighbors:
        raise InvalidInput("num_neighbors is empty; give one number per hop, -1 for all neighbours.")
    for k in num_neighbors:
        if k != -1 and not 1 <= k <= MAX_DRAWS:
            raise InvalidInput(f"num_neighbors holds {k}; give 1 to {MAX_DRAWS} per hop, or -1 for all neighbours.")
    return tuple(num_neighbors)


def choose_edges(indptr: Ints, targets: Ints, k: int, key: int) -> tuple[Ints, Ints]:
    """Positions of the in-edges that each target takes, target by target, and how many those are.  [m] -> [e], [m]."""
    start = indptr[targets]
    degree = indptr[targets + 1] - start
    counts = degree if k == -1 else np.minimum(degree, k)
    end = np.cumsum(counts)
    offset = end - counts
    edge = np.repeat(start - offset, counts)
    edge += np.arange(len(edge))  # complete lists are right now
    if k != -1:
        longer = np.flatnonzero(degree > k)
        draw = np.arange(k)
        step = max(1, CHUNK // k)
        for part in (longer[at : at + step] for at in range(0, len(longer), step)):
            picks = choose(targets[part], degree[part], k, key)
            edge[offset[part, None] + draw] = start[part, None] + picks
    return edge, counts


def choose(nodes: Ints, degree: Ints, k: int, key: int) -> Ints:
    """k different numbers below each degree, uniform among all such sets.  nodes, degree: [m], degree > k -> [m, k]."""
    draw = np.arange(k)
    limit = (degree - k)[:, None]
    bits = hashed_array(key, ((nodes[:, None] << DRAW_BITS) + draw).view(np.uint64))
    # hash / 2^53 × size, rounded down: always below size, and off from uniform by at most size / 2^53
    share = (limit + 1.0) * 2.0**-BITS + draw * 2.0**-BITS
    share *= bits.view(np.int64)
    picks = share.astype(np.int64)

    order = picks << DRAW_BITS
    order |= draw
    order.sort(axis=1)  # by value, then by draw
    repeats = np.zeros(picks.shape, dtype=bool)
    np.less(order[:, 1:] ^ order[:, :-1], MAX_DRAWS, out=repeats[:, 1:])
    at = np.flatnonzero(repeats)
    if len(at) == 0:
        return picks
    # From here on draws are numbered over all nodes: at // k is the node, at % k the draw.
    gives_way = np.zeros(picks.size, dtype=bool)
    gives_way[at - at % k + (order.reshape(-1)[at] & MAX_DRAWS - 1)] = True
    reference = picks - limit
    later = np.flatnonzero(reference.view(np.uint64) < draw.view(np.uint64))  # negative ones are huge when unsigned
    earlier = later - later % k + reference.reshape(-1)[later]
    while len(new := later[np.flatnonzero(gives_way[earlier] > gives_way[later])]):
        gives_way[new] = True
    at = np.flatnonzero(gives_way)
    picks.reshape(-1)[at] = degree[at // k] - k + at % k
    return picks


def _joined(parts: list[Ints]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
