"""From a list of edges as people write it to the one form the trainer reads: simple, sorted, compressed by target.

An edge j -> i is the key i * N + j, so sorting keys sorts by target and then by source, and equal keys are duplicates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.errors import InvalidInput

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Edges(NamedTuple):
    """Compressed rows: `indices[indptr[i]:indptr[i + 1]]` are the sources of the edges into i, ascending."""

    indptr: Ints  # [N + 1]
    indices: Ints  # [E]
    weight: Floats | None  # [E]
    notes: tuple[str, ...]


def compress(edge_index: Ints, weight: Floats | None, num_nodes: int, *, directed: bool) -> Edges:
    """Remove self loops, merge duplicates, add the reverse of each edge if undirected.  edge_index: [2, E].

    Weights of duplicates are added. In an undirected list the two directions of an edge are duplicates as well, except
    where the whole list already is symmetric, weights included: then it is taken as it stands.

    Raises:
        InvalidInput: an end is not a node, or a weight is negative or not finite.
    """
    _check(edge_index, weight, num_nodes)
    source, target = edge_index
    loops = source == target
    if count := int(loops.sum()):
        source, target = source[~loops], target[~loops]
        weight = weight if weight is None else weight[~loops]

    listed = len(source)
    key, weight = merge(target * num_nodes + source, weight)
    merged = listed - len(key)
    if not directed:
        key, weight = _symmetric(key, weight, num_nodes)

    indptr = np.searchsorted(key, np.arange(num_nodes + 1, dtype=np.int64) * num_nodes).astype(np.int64)
    indices = key % num_nodes
    touched = np.diff(indptr) > 0
    if directed:
        touched[indices] = True
    isolated = num_nodes - int(touched.sum())
    told = notes(loops=count, merged=merged, weighted=weight is not None, edges=len(key), isolated=isolated)
    return Edges(indptr, indices, weight, told)


def notes(*, loops: int, merged: int, weighted: bool, edges: int, isolated: int) -> tuple[str, ...]:
    """What was changed on the way, for people."""
    told = []
    if loops:
        told.append(f"removed {loops} self loop{_s(loops)} (the encoder adds its own)")
    if merged:
        told.append(f"merged {merged} duplicate edge{_s(merged)}" + (", adding their weights" if weighted else ""))
    if not edges:
        told.append("the graph has no edges: every node is on its own")
    elif isolated:
        told.append(f"kept {isolated} isolated node{_s(isolated)}")
    return tuple(told)


def _check(edge_index: Ints, weight: Floats | None, num_nodes: int) -> None:
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if outside.any():
        i = int(outside.any(axis=0).argmax())
        raise InvalidInput(
            f"edge_index[:, {i}] = ({edge_index[0, i]}, {edge_index[1, i]}): nodes are numbered 0 to {num_nodes - 1}. "
            "Number nodes by their row in x, from 0."
        )
    if weight is None:
        return
    if weight.shape != (edge_index.shape[1],):
        raise InvalidInput(
            f"{edge_index.shape[1]} edges but weights of shape {weight.shape}. Give one weight per edge."
        )
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidInput(f"edge_weight[{i}] is {weight[i]}. Weights must be finite numbers of at least 0.")


def merge(key: Ints, weight: Floats | None) -> tuple[Ints, Floats | None]:
    """Sorted unique keys, and the sums of their weights."""
    if weight is None:
        key = np.sort(key)
        return key[_first(key)], None
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = _first(key)
    sums = weight[order].astype(np.float64)
    starts = np.flatnonzero(first)
    return key[first], (np.add.reduceat(sums, starts) if len(starts) else sums).astype(np.float32)


def _first(ordered: Ints) -> NDArray[np.bool_]:
    """Whether an element of a sorted array differs from the one before."""
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def _symmetric(key: Ints, weight: Floats | None, num_nodes: int) -> tuple[Ints, Floats | None]:
    reverse = key % num_nodes * num_nodes + key // num_nodes
    if weight is None:
        return merge(np.concatenate([key, reverse]), None)
    order = np.argsort(reverse)
    if np.array_equal(reverse[order], key) and np.array_equal(weight[order], weight):
        return key, weight
    return merge(np.concatenate([key, reverse]), np.concatenate([weight, weight]))


def _s(count: int) -> str:
    return "" if count == 1 else "s"
