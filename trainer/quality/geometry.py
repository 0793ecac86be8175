"""What embeddings look like without any label: do they fill the space they have, or collapse?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

_ROWS = 65_536  # rows turned to float64 at once
_UNIFORMITY_NODES = 2_048


def geometry(z: Tensor, *, seed: int = 0) -> dict[str, float]:
    """Label-free figures.  z: [N, d], finite.

    effective_rank   exp of the entropy of the normalised singular values of centred z, from 0 (all rows equal) to d
    uniformity       log mean exp(-2 |u_i - u_j|²) over pairs of unit rows (Wang & Isola), 0 if collapsed, about -4
                     if spread evenly; over a seeded sample of at most 2,048 nodes
    mean_norm, std_norm   of the rows
    dead_dimensions  share of columns whose standard deviation is below 1e-6 of the largest
    """
    mean = z.mean(0, dtype=torch.float64)
    scatter = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64, device=z.device)
    for rows in torch.split(z, _ROWS):
        centred = rows.double() - mean
        scatter += centred.T @ centred
    std = (scatter.diagonal() / len(z)).sqrt()
    norms = torch.linalg.vector_norm(z, dim=1, dtype=torch.float64)
    # Below 1e-9 of its mean a float32 column cannot vary: that is rounding, not spread.
    spread = std > torch.maximum(1e-6 * std.max(), 1e-9 * mean.abs().max())
    return {
        "effective_rank": _effective_rank(scatter) if bool(spread.any()) else 0.0,
        "uniformity": _uniformity(z, seed),
        "mean_norm": float(norms.mean()),
        "std_norm": float(norms.std(correction=0)),
        "dead_dimensions": float((~spread).double().mean()),
    }


def _effective_rank(scatter: Tensor) -> float:
    """Roy & Vetterli's effective rank from zᵀz of centred z, whose eigenvalues are the squared singular values."""
    eigenvalues = torch.linalg.eigvalsh(scatter)
    share = eigenvalues.clamp_min(0).where(eigenvalues > 1e-12 * eigenvalues[-1], 0.0).sqrt()
    share = share / share.sum()
    return float(torch.exp(-torch.special.xlogy(share, share).sum()))


def _uniformity(z: Tensor, seed: int) -> float:
    if len(z) < 2:
        return 0.0
    chosen = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))[:_UNIFORMITY_NODES]
    unit = normalize(z[chosen.to(z.device)].double(), dim=1)
    return float(torch.pdist(unit).square().mul(-2).exp().mean().log())
