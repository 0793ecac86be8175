"""Do embeddings know which nodes are linked?  A figure that needs no labels, on edges that training never saw.

    AUC = P(cos(z_i, z_j) > cos(z_k, z_l)),  {i, j} a held-out edge, {k, l} a random pair without an edge, ties half

so 1/2 is chance. Pairs without an edge are the first of a hashed sequence that belongs to the seed: they depend on seed
and graph only, whatever is judged, so figures of different runs on the same graph compare the very same pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.graph import Graph
from trainer.data.seeds import generator, hashed_array, key
from trainer.evaluation.rows import Rows, sample
from trainer.loss.weights import auc_below

MAX_PAIRS = 100_000  # of each kind: the AUC's standard error is then at most 0.0016
DRAWS_PER_PAIR = 50  # a graph so dense that this many draws find no pair without an edge has hardly any
_BLOCK_BYTES = 32 << 20  # unit rows of embeddings held at a time

Ints = NDArray[np.int64]


def link_auc(
    z: np.ndarray | Tensor | Rows, graph: Graph, *, seed: int, max_pairs: int = MAX_PAIRS
) -> dict[str, Any] | None:
    """How well cosines tell held-out edges from pairs without an edge; None where the graph holds none out.

    z: [N, d], may be a memory map; it is read for the pairs only. Of more than `max_pairs` held-out edges a sample of
    that size is judged, drawn by `seed`. "auc" is None, and "reason" says why, where no pair without an edge was found.
    Memory: about 60 MB of rows, 50 bytes a pair.

    Raises:
        ValueError: z does not have a row for each node.
    """
    if graph.held_out is None:
        return None
    table = Rows.of(z)
    if len(table) != graph.num_nodes:
        raise ValueError(f"{len(table)} embeddings for {graph.num_nodes} nodes")
    available = graph.held_out.shape[1]
    chosen = sample(torch.arange(available), max_pairs, generator(seed, "held-out edges judged"))
    positives = graph.held_out[:, chosen]
    negatives = torch.from_numpy(unlinked_pairs(graph, len(chosen), seed=seed))
    figures: dict[str, Any] = {
        "auc": None,
        "pairs": len(chosen),
        "available": available,
        "sampled": len(chosen) < available,
        "negatives": negatives.shape[1],
    }
    if not negatives.shape[1]:
        return figures | {"reason": f"no pair without an edge in {DRAWS_PER_PAIR * len(chosen)} draws: too dense"}
    return figures | {"auc": auc_below(_cosines(table, negatives), _cosines(table, positives))}


def unlinked_pairs(graph: Graph, count: int, *, seed: int) -> Ints:
    """`count` random pairs of different nodes, [2, count], with no edge in either direction and not held out.

    The first of a hashed sequence, so fewer of them are a beginning of more; one may come twice. Fewer than `count`
    come back where DRAWS_PER_PAIR × `count` draws do not find as many.
    """
    n, name = graph.num_nodes, key(seed, "pairs without an edge")
    found = np.empty((2, 0), dtype=np.int64)
    for turn in range(DRAWS_PER_PAIR):
        draws = np.arange(2 * count * turn, 2 * count * (turn + 1), dtype=np.uint64)
        drawn = (hashed_array(name, draws) % np.uint64(n)).astype(np.int64).reshape(-1, 2).T
        linked = (drawn[0] == drawn[1]) | has_edge(graph, *drawn) | has_edge(graph, *drawn[::-1]) | _held(graph, drawn)
        found = np.concatenate([found, drawn[:, ~linked]], axis=1)[:, :count]
        if found.shape[1] == count:
            break
    graph.release()
    return found


def has_edge(graph: Graph, source: Ints, target: Ints) -> NDArray[np.bool_]:
    """Whether each source sends to its target.  [n], [n] -> [n]; bisects all rows at once, so no edge is copied."""
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    low, end = np.array(indptr[target]), np.array(indptr[target + 1])
    high = end.copy()
    if not len(indices):
        return np.zeros(len(source), dtype=bool)
    for _ in range(int((end - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        below = (low < high) & (indices[np.minimum(middle, len(indices) - 1)] < source)
        low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    return (low < end) & (indices[np.minimum(low, len(indices) - 1)] == source)


def _held(graph: Graph, pairs: Ints) -> NDArray[np.bool_]:
    """Whether each pair is held out; `held_out` is ascending.  [2, n] -> [n]."""
    assert graph.held_out is not None
    n, (low, high) = graph.num_nodes, graph.held_out.numpy()
    held = low * n + high
    wanted = pairs.min(axis=0) * n + pairs.max(axis=0)
    at = np.searchsorted(held, wanted)
    return held[np.minimum(at, len(held) - 1)] == wanted


def _cosines(table: Rows, pairs: Tensor) -> Tensor:
    """u_i · u_j of unit rows, a block of pairs at a time; a zero row has cosine 0 with every other.  [2, n] -> [n]."""
    block = max(1, _BLOCK_BYTES // (8 * table.dim))
    blocks = pairs.split(block, dim=1)
    return torch.cat([torch.linalg.vecdot(*(table.take(ends, unit=True) for ends in some)) for some in blocks])
