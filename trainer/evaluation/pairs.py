"""How similar false negatives are compared with true negatives, over all pairs of nodes (methods 5.4).

A false negative (FN) is a pair of different nodes of the same class, a true negative (TN) one of different classes.
With dist = 1 - cos, pooled over all pairs:

    distance ratio = 100 · median_FN(dist) / median_TN(dist)            in percent, smaller is better

The N² cosines are never stored: each tile of them is counted into 2^16 bins and forgotten, so medians are exact up to
one bin (3e-5 in cosine).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.evaluation.rows import Rows, sample

BINS = 2**16  # of the medians, over cosines in [-1, 1]
COARSE_BINS = 128  # of the histograms that are reported and drawn; divides BINS
BIN_WIDTH = 2 / BINS


def pair_statistics(
    z: np.ndarray | Tensor | Rows, y: Tensor, *, max_nodes: int = 50_000, seed: int = 0, tile: int = 512
) -> dict[str, Any]:
    """Distance ratio, medians and similarity histograms of FN and TN pairs.  z: [N, d], y: [N], -1 without a label.

    Only labelled nodes count; above `max_nodes` of them a seeded sample of that size is used, and "sampled" says so.
    The ratio is None without pairs of both kinds, or if true negatives are closer than the bins can tell. A zero row
    has cosine 0 with every other. Memory: 4 bytes × d × nodes used, and 20 bytes × tile².
    """
    labelled = torch.nonzero(y >= 0).flatten()
    nodes = sample(labelled, max_nodes, torch.Generator().manual_seed(seed))
    fn, tn = count_cosines(Rows.of(z, torch.float32).take(nodes, unit=True), y[nodes].cpu(), tile=tile)
    median_fn, median_tn = median_distance(fn), median_distance(tn)
    ratio = None
    if median_fn is not None and median_tn is not None and median_tn > BIN_WIDTH:
        ratio = 100 * median_fn / median_tn
    return {
        "distance_ratio": ratio,
        "median_distance_fn": median_fn,
        "median_distance_tn": median_tn,
        "fn_pairs": int(fn.sum()),
        "tn_pairs": int(tn.sum()),
        "nodes": len(nodes),
        "available": len(labelled),
        "sampled": len(nodes) < len(labelled),
        "bin_width": BIN_WIDTH,
        "histogram": {"low": -1.0, "high": 1.0, "fn": _density(fn), "tn": _density(tn)},
    }


def count_cosines(unit: Tensor, y: Tensor, *, tile: int) -> tuple[Tensor, Tensor]:
    """Histograms of u_i·u_j over FN and TN pairs i < j.  unit: [n, d] unit rows, y: [n] -> [BINS], [BINS] int64."""
    counts = torch.zeros(2 * BINS + 1, dtype=torch.long, device=unit.device)  # TN, FN, and one bin for what is no pair
    for i in range(0, len(unit), tile):
        for j in range(i, len(unit), tile):
            cosine = unit[i : i + tile] @ unit[j : j + tile].T
            index = cosine.add_(1).mul_(BINS / 2).clamp_(0, BINS - 1).int()
            index.add_(y[i : i + tile, None] == y[None, j : j + tile], alpha=BINS)
            if i == j:  # the diagonal and what is below it
                index.masked_fill_(torch.ones_like(index, dtype=torch.bool).tril_(), 2 * BINS)
            counts += torch.bincount(index.flatten(), minlength=len(counts))
    return counts[BINS : 2 * BINS].cpu(), counts[:BINS].cpu()


def median_distance(counts: Tensor) -> float | None:
    """Median of 1 - cos from a histogram of cosines, None if it is empty; of two middle pairs it is the mean."""
    total = int(counts.sum())
    if total == 0:
        return None
    middle = torch.tensor([(total + 1) // 2, total // 2 + 1])  # ranks from 1
    bins = torch.searchsorted(counts.cumsum(0), middle)
    return float(2 - (bins.double().mean() + 0.5) * BIN_WIDTH)


def _density(counts: Tensor) -> list[float]:
    """COARSE_BINS densities over [-1, 1] that integrate to one (zeros if there are no pairs)."""
    coarse = counts.view(COARSE_BINS, -1).sum(1).double()
    density: list[float] = (coarse / max(1.0, float(coarse.sum())) * COARSE_BINS / 2).tolist()
    return density
