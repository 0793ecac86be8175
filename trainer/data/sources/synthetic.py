"""Graphs of any size with a known answer: a degree-corrected planted partition with sparse, class-dependent features.

Node i has a class c_i (classes of equal size, up to one) and an attraction θ_i = min(u^(-1/(γ-1)), √N), u uniform in
(0, 1] and γ = `degree_exponent`: a power law whose largest node cannot take all. Of m = N · degree / 2 undirected
edges,

    m · homophily      join i and j of one class,     P(i, j) ∝ θ_i θ_j / Θ_c        (Θ_c = sum of θ over class c)
    the others         join two classes,              P(i, j) ∝ θ_i θ_j (1/(Θ - Θ_ci) + 1/(Θ - Θ_cj))

without self loops or repetitions: what is drawn twice is drawn again, so both numbers are met exactly unless the pairs
run out (said in the notes). Class c owns columns [cF/C, (c+1)F/C). A node draws `active_features` columns with
replacement, each with probability `signal` from its own class's and else from all; those drawn are 1, the others 0.

Peak memory: about 80 bytes per undirected edge (measured at 20 million) and, by count of arrays, 20 per non-zero
feature. The same spec gives the same arrays.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.features import csr
from trainer.data.graph import Graph
from trainer.spec.data import SyntheticSpec

Ints = NDArray[np.int64]
CHUNK = 1 << 22  # draws at a time: bounds temporaries. Part of what a seed means, so never change it
MAX_ROUNDS = 60


def generate(spec: SyntheticSpec) -> Graph:
    """The graph that `spec` describes."""
    rng = np.random.default_rng(spec.seed)
    # Within this function's helpers nodes are numbered class by class, so that a class is a range of the cumulative θ;
    # `order` gives them their final, shuffled numbers.
    order = rng.permutation(spec.nodes)
    bounds = np.arange(spec.classes + 1) * spec.nodes // spec.classes
    label = np.repeat(np.arange(spec.classes), np.diff(bounds))
    edge_index, notes = _edges(spec, bounds, label, rng)
    y = np.empty(spec.nodes, dtype=np.int64)
    y[order] = label
    return Graph.from_edges(
        order[edge_index],
        _features(spec, y, rng),
        name="synthetic",
        y=y,
        classes=[str(c) for c in range(spec.classes)],
        notes=notes,
    )


def _edges(spec: SyntheticSpec, bounds: Ints, label: Ints, rng: np.random.Generator) -> tuple[Ints, list[str]]:
    n = spec.nodes
    uniform = 1 - rng.random(n)  # (0, 1]
    theta = np.minimum(uniform ** (-1 / (spec.degree_exponent - 1)), np.sqrt(n))
    mass = np.concatenate([[0.0], np.cumsum(theta)])  # node i owns [mass[i], mass[i + 1])

    sizes = np.diff(bounds)
    pairs_inside = int((sizes * (sizes - 1) // 2).sum())
    pairs = n * (n - 1) // 2
    asked = round(n * spec.degree / 2)
    inside = asked if spec.classes == 1 else round(asked * spec.homophily)
    found = [
        _draw_pairs(min(inside, pairs_inside), mass, bounds, label, rng, same=True),
        _draw_pairs(min(asked - inside, pairs - pairs_inside), mass, bounds, label, rng, same=False),
    ]
    key = np.concatenate(found)
    notes = (
        []
        if len(key) == asked
        else [f"{asked - len(key)} of {asked} edges could not be placed: too few pairs are left"]
    )
    return np.stack([key // n, key % n]), notes


def _draw_pairs(
    wanted: int, mass: NDArray[np.float64], bounds: Ints, label: Ints, rng: np.random.Generator, *, same: bool
) -> Ints:
    """Up to `wanted` different pairs i < j as sorted keys i * N + j, all within classes or all between them."""
    key = np.empty(0, dtype=np.int64)
    for _ in range(MAX_ROUNDS):
        missing = wanted - len(key)
        if missing == 0:
            break
        parts = [
            _candidates(min(CHUNK, missing - at), mass, bounds, label, rng, same) for at in range(0, missing, CHUNK)
        ]
        fresh = np.sort(np.concatenate(parts))
        fresh = fresh[np.diff(fresh, prepend=-1) != 0]
        if len(key):  # few are new after the first round: look them up instead of sorting all again
            at = np.searchsorted(key, fresh)
            new = key[np.minimum(at, len(key) - 1)] != fresh
            fresh, at = fresh[new], at[new]
            key = np.insert(key, at, fresh)
        else:
            key = fresh
    return key


def _candidates(
    count: int, mass: NDArray[np.float64], bounds: Ints, label: Ints, rng: np.random.Generator, same: bool
) -> Ints:
    n = len(label)
    # Look up points in ascending order: kinder to caches, and several times faster at a million nodes.
    i = _node_at(np.sort(rng.random(count)) * mass[-1], mass)
    low, high = mass[bounds[:-1]][label[i]], mass[bounds[1:]][label[i]]
    uniform = rng.random(count)
    if same:
        at = low + uniform * (high - low)
    else:  # a point outside the class: skip its range
        at = uniform * (mass[-1] - (high - low))
        at += np.where(at >= low, high - low, 0)
    ascending = np.argsort(at)
    i, j = i[ascending], _node_at(at[ascending], mass)
    keep = (i != j) & ((label[i] == label[j]) == same)  # rounding at a range's end may land one node too far
    i, j = i[keep], j[keep]
    return np.minimum(i, j) * n + np.maximum(i, j)


def _node_at(point: NDArray[np.float64], mass: NDArray[np.float64]) -> Ints:
    """The node whose range holds the point: inverse of the cumulative θ."""
    return np.minimum(np.searchsorted(mass, point, side="right") - 1, len(mass) - 2)


def _features(spec: SyntheticSpec, y: Ints, rng: np.random.Generator) -> Tensor:
    """CSR [N, F] of ones."""
    start = np.arange(spec.classes + 1) * spec.features // spec.classes
    rows = max(1, CHUNK // spec.active_features)
    counts, columns = [], []
    for at in range(0, spec.nodes, rows):
        own = y[at : at + rows, None]
        shape = (len(own), spec.active_features)
        from_own = rng.random(shape) < spec.signal
        low = np.where(from_own, start[own], 0)
        width = np.where(from_own, start[own + 1] - start[own], spec.features)
        drawn = np.sort(low + (rng.random(shape) * width).astype(np.int64), axis=1)
        first = np.diff(drawn, axis=1, prepend=-1) != 0
        counts.append(first.sum(1))
        columns.append(drawn[first])
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    indices = np.concatenate(columns)
    values = torch.ones(len(indices))
    return csr(torch.from_numpy(indptr), torch.from_numpy(indices), values, (spec.nodes, spec.features))
