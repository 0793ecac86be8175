"""Edges that training never sees, kept to judge embeddings without labels (trainer/evaluation/links.py).

Whether the pair {i, j} is held out is a hash of the seed and of i < j: the same on every machine and in every worker,
and the same for both directions of an edge. Edges are read by pieces, so a memory-mapped graph costs new edge arrays in
memory and nothing else: features and ids stay in their files. Structural features are computed anew from what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data import structural
from trainer.data.graph import Graph
from trainer.data.seeds import BITS, hashed_array, key
from trainer.errors import InvalidInput
from trainer.files.mapped import PIECE_BYTES

Ints = NDArray[np.int64]


def hold_out(graph: Graph, share: float, seed: int) -> Graph:
    """The graph without a share of its node pairs that have an edge; they are its `held_out`, [2, K], i < j, ascending.

    Each pair is held out with probability `share`, so K varies a little around it. A pair loses both directions. Nodes
    may lose all their edges. Memory: the new edge arrays, a byte for each old edge, some 30 bytes for each pair.

    Raises:
        InvalidInput: no pair would be held out, no edge would be left to train on, or pairs are held out already.
    """
    if graph.held_out is not None:
        raise InvalidInput(
            f"{graph.name}: {graph.held_out.shape[1]} of its pairs are held out already. Set data.held_out_edges to 0."
        )
    choice = _choose(graph, share, seed)
    if not len(choice.pairs):
        raise InvalidInput(
            f"{graph.name}: a share of {share:g} holds out none of its {graph.num_edges} edges. "
            "Raise data.held_out_edges, or set it to 0."
        )
    left = int(choice.indptr[-1])
    if not left:
        raise InvalidInput(
            f"{graph.name}: holding out a share of {share:g} leaves none of its {graph.num_edges} edges to train on. "
            "Lower data.held_out_edges, or set another data.held_out_seed."
        )
    pairs = np.stack([choice.pairs // graph.num_nodes, choice.pairs % graph.num_nodes])
    told = f"held out {len(choice.pairs)} pairs of nodes ({graph.num_edges - left} of {graph.num_edges} edges)"
    indices = _kept(graph, graph.indices.numpy(), choice)
    x = graph.x
    if structural.NOTE in graph.notes:  # features made of all edges would tell which were held out
        x = torch.from_numpy(structural.features(choice.indptr, indices))
    return replace(
        graph,
        indptr=torch.from_numpy(choice.indptr),
        indices=torch.from_numpy(indices),
        x=x,
        weight=None if graph.weight is None else torch.from_numpy(_kept(graph, graph.weight.numpy(), choice)),
        held_out=torch.from_numpy(pairs),
        notes=(*graph.notes, told),
    )


class _Choice(NamedTuple):
    keep: NDArray[np.bool_]  # [E], whether an edge stays
    indptr: Ints  # [N + 1], of the edges that stay
    pairs: Ints  # [K], i * N + j of those held out, ascending


def _choose(graph: Graph, share: float, seed: int) -> _Choice:
    name, below = key(seed, "held-out edges"), np.uint64(round(share * 2**BITS))
    keep = np.empty(graph.num_edges, dtype=bool)
    removed = np.zeros(graph.num_nodes + 1, dtype=np.int64)  # [i + 1]: edges into i
    chosen = [np.zeros(0, dtype=np.int64)]
    for part, target in _edges(graph):
        source = graph.indices[part].numpy()
        pair = np.minimum(source, target) * graph.num_nodes + np.maximum(source, target)
        held = hashed_array(name, pair.astype(np.uint64)) < below
        np.logical_not(held, out=keep[part])
        first = int(target[0])
        counts = np.bincount(target[held] - first)
        removed[first + 1 : first + 1 + len(counts)] += counts
        chosen.append(np.unique(pair[held]))
        graph.release()
    return _Choice(keep, graph.indptr.numpy() - np.cumsum(removed), np.unique(np.concatenate(chosen)))


def _edges(graph: Graph) -> Iterator[tuple[slice, Ints]]:
    """Stretches of edges and the target of each edge in them; a stretch may begin and end within a node's edges."""
    indptr = graph.indptr.numpy()
    for start in range(0, graph.num_edges, PIECE_BYTES // 8):
        stop = min(start + PIECE_BYTES // 8, graph.num_edges)
        first = int(np.searchsorted(indptr, start, side="right")) - 1
        last = int(np.searchsorted(indptr, stop))
        counts = np.diff(np.clip(indptr[first : last + 1], start, stop))
        yield slice(start, stop), np.repeat(np.arange(first, last), counts)


def _kept(graph: Graph, array: NDArray[Any], choice: _Choice) -> NDArray[Any]:
    """The entries of an edge array that stay, in memory."""
    kept = np.empty(int(choice.indptr[-1]), dtype=array.dtype)
    done = 0
    for start in range(0, len(array), PIECE_BYTES // 8):
        part = slice(start, start + PIECE_BYTES // 8)
        piece = array[part][choice.keep[part]]
        kept[done : done + len(piece)] = piece
        done += len(piece)
        graph.release()
    return kept
