"""Adaptive drop (Zhu et al., Graph Contrastive Learning with Adaptive Augmentation, WWW 2021): what matters less goes.

With a centrality ψ of nodes, scores q of edges are log ψ(target), of feature columns log Σ_i 1[x_if ≠ 0] ψ_i, and

    w = (max q − q) / (max q − mean q),   drop probability = min(p w, 0.7)        (the mean of w is 1)

Where more than half of all entries are not zero, columns are weighed by |x_if| instead of the indicator. Memory: a
number for each node and column; PageRank and eigenvector centrality hold one for each edge while they are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.data.features import csr
from trainer.data.graph import Graph
from trainer.nn.sparse import row_of_entry
from trainer.spec.encoder import AugmentSpec

MOST = 0.7  # drop probability
_DAMPING = 0.85
_STEPS = 100
_SMALLEST = 1e-8  # centrality: nodes beyond the largest component have none
_ROWS = 1 << 16  # of features at a time


class DropRates(NamedTuple):
    """How likely a view drops each edge, by its target, and each feature column."""

    edge: Tensor  # [N] float64
    column: Tensor  # [F] float64


def drop_rates(spec: AugmentSpec, graph: Graph) -> tuple[DropRates, DropRates] | None:
    """Of both views; None where every edge and column is as likely as the next."""
    if spec.adaptive == "none":
        return None
    psi = centrality(graph, spec.adaptive)
    into = graph.indptr.diff().double()
    edge = _weights(psi.log(), into)
    column = _weights(_column_scores(graph, psi), torch.ones(graph.num_features, dtype=torch.float64))
    first, second = (
        DropRates((edge_drop * edge).clamp_max(MOST), (mask * column).clamp_max(MOST))
        for edge_drop, mask in zip(spec.edge_drop, spec.feature_mask, strict=True)
    )
    return first, second


def centrality(graph: Graph, kind: str) -> Tensor:
    """[N] float64, above 0: in-degree, PageRank, or the first eigenvector of A."""
    degree = graph.indptr.diff().double()
    if kind == "degree":
        return degree.clamp_min(_SMALLEST)
    n = graph.num_nodes
    adjacency = csr(graph.indptr, graph.indices, torch.ones(graph.num_edges, dtype=torch.float64), (n, n))
    psi = torch.ones(n, 1, dtype=torch.float64)
    out = torch.bincount(graph.indices, minlength=n).clamp_min(1).double()[:, None]
    for _ in range(_STEPS):
        if kind == "pagerank":
            psi = (1 - _DAMPING) + _DAMPING * (adjacency @ (psi / out))
        else:  # A + I has the eigenvectors of A, and does not swing where A is bipartite
            psi = adjacency @ psi + psi
            psi /= psi.norm()
    return psi[:, 0].clamp_min(_SMALLEST)


def _weights(score: Tensor, count: Tensor) -> Tensor:
    """w of things that occur `count` times; 1 everywhere if all scores are equal."""
    occurs = count > 0
    if not bool(occurs.any()):
        return torch.ones_like(score)
    highest = score[occurs].max()
    apart = highest - (score[occurs] * count[occurs]).sum() / count.sum()
    return (highest - score).clamp_min(0) / apart if apart > 1e-12 else torch.ones_like(score)


def _column_scores(graph: Graph, psi: Tensor) -> Tensor:
    """log Σ_i 1[x_if ≠ 0] ψ_i; a column that is never active has a tiny sum rather than log 0."""
    x = graph.x
    sums = torch.zeros(graph.num_features, dtype=torch.float64)
    if x.layout == torch.sparse_csr:
        present = psi[row_of_entry(x.crow_indices())] * (x.values() != 0)
        sums.index_add_(0, x.col_indices(), present)
        return sums.clamp_min(1e-12).log()
    active, absolute = sums.clone(), sums.clone()
    nonzero = 0
    for start in range(0, len(x), _ROWS):
        part, of = x[start : start + _ROWS].double(), psi[start : start + _ROWS]
        nonzero += int(torch.count_nonzero(part))
        active += of @ (part != 0).double()
        absolute += of @ part.abs()
        graph.release()
    return (absolute if nonzero > x.numel() / 2 else active).clamp_min(1e-12).log()
