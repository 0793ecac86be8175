"""Soft clusters of embeddings, and how far neighbours agree on theirs (HomoGCL).

    π_ic = softmax_c(−‖z_i − μ_c‖²/σ),   H = mean over edges (with self loops) and clusters of (π_ic − π_jc)²

Centroids μ come from Lloyd's algorithm in torch, with a start of its own seed: the same numbers on every run.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from trainer.nn.pairs import pair_dots


@torch.no_grad()
def centroids(z: Tensor, count: int, *, iterations: int, generator: torch.Generator) -> Tensor:
    """k-means from `count` nodes drawn at random; a cluster without nodes stays as it is.  z: [N, d] -> [count, d]."""
    found = z[torch.randperm(len(z), generator=generator)[:count].to(z.device)]
    for _ in range(iterations):
        nearest = _closeness(z, found).argmax(1)
        members = one_hot(nearest, count).to(z)
        sizes = members.sum(0).unsqueeze(1)
        found = torch.where(sizes > 0, members.T @ z / sizes.clamp_min(1), found)
    return found


def soft_clusters(z: Tensor, centres: Tensor, *, sharpness: float) -> Tensor:
    """π, differentiable in z.  z: [N, d], centres: [C, d] -> [N, C]."""
    return torch.softmax(2 * _closeness(z, centres) / sharpness, dim=1)


def disagreement(clusters: Tensor, edges: Tensor) -> Tensor:
    """H over a CSR of edges without self loops; loops add nothing and are counted.  clusters: [N, C]."""
    n, count = clusters.shape
    squares = clusters.square().sum(1)
    ends = edges.crow_indices().diff() + torch.bincount(edges.col_indices(), minlength=n)
    apart = (ends * squares).sum() - 2 * pair_dots(clusters, clusters, edges).sum()
    return apart / ((edges.col_indices().numel() + n) * count)


def _closeness(z: Tensor, centres: Tensor) -> Tensor:
    """(‖z_i‖² − ‖z_i − μ_c‖²)/2 about the centroids' mean: what depends on c, without its large common part."""
    middle = centres.mean(0)
    z, centres = z - middle, centres - middle
    return z @ centres.T - centres.square().sum(1) / 2
