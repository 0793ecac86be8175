"""What embeddings look like without any label: do they fill the space they have, or collapse?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from trainer.evaluation.rows import Rows

UNIFORMITY_NODES = 2_048  # pairs grow with the square: two million of them settle a mean


def geometry(z: np.ndarray | Tensor | Rows, *, seed: int = 0) -> dict[str, float]:
    """Label-free figures.  z: [N, d], finite, read once by pieces; all figures but uniformity are over all rows.

    effective_rank   exp of the entropy of the normalised singular values of centred z, from 0 (all rows equal) to d
    uniformity       log mean exp(-2 |u_i - u_j|²) over pairs of unit rows (Wang & Isola), 0 if collapsed, about -4
                     if spread evenly; over a seeded sample of at most UNIFORMITY_NODES nodes
    mean_norm, std_norm   of the rows
    dead_dimensions  share of columns whose standard deviation is below 1e-6 of the largest
    """
    table = Rows.of(z)
    columns, norms = _Moments.none(table.dim), _Moments.none(1)
    # One buffer for all pieces: a new one for each would fragment the heap, up to some 100 MB.
    exact = torch.empty(min(table.piece, len(table)), table.dim, dtype=torch.float64)
    for piece in table.pieces():
        rows = exact[: len(piece)].copy_(piece)
        norms = norms.joined(_Moments.of(torch.linalg.vector_norm(rows, dim=1, keepdim=True)))
        columns = columns.joined(_Moments.of(rows))
    # Below 1e-9 of its mean a float32 column cannot vary: that is rounding, not spread.
    spread = columns.std > torch.maximum(1e-6 * columns.std.max(), 1e-9 * columns.mean.abs().max())
    return {
        "effective_rank": _effective_rank(columns.scatter) if bool(spread.any()) else 0.0,
        "uniformity": _uniformity(table, seed),
        "mean_norm": float(norms.mean),
        "std_norm": float(norms.std),
        "dead_dimensions": float((~spread).double().mean()),
    }


@dataclass(frozen=True)
class _Moments:
    """Mean and scatter (sum of outer products of centred rows) of some rows, in float64."""

    count: int
    mean: Tensor  # [d]
    scatter: Tensor  # [d, d]

    @classmethod
    def none(cls, dim: int) -> _Moments:
        return cls(0, torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64))

    @classmethod
    def of(cls, rows: Tensor) -> _Moments:
        """Of rows [n, d], which are centred in place."""
        mean = rows.mean(0)
        rows.sub_(mean)
        return cls(len(rows), mean, rows.T @ rows)

    @property
    def std(self) -> Tensor:
        return (self.scatter.diagonal() / self.count).sqrt()

    def joined(self, other: _Moments) -> _Moments:
        """Of both sets of rows (Chan, Golub & LeVeque): no difference of large sums, so no digits are lost."""
        if not self.count:
            return other
        count = self.count + other.count
        apart = other.mean - self.mean
        between = torch.outer(apart, apart) * (self.count * other.count / count)
        return _Moments(count, self.mean + apart * (other.count / count), self.scatter + other.scatter + between)


def _effective_rank(scatter: Tensor) -> float:
    """Roy & Vetterli's effective rank from zᵀz of centred z, whose eigenvalues are the squared singular values."""
    eigenvalues = torch.linalg.eigvalsh(scatter)
    share = eigenvalues.clamp_min(0).where(eigenvalues > 1e-12 * eigenvalues[-1], 0.0).sqrt()
    share = share / share.sum()
    return float(torch.exp(-torch.special.xlogy(share, share).sum()))


def _uniformity(table: Rows, seed: int) -> float:
    if len(table) < 2:
        return 0.0
    chosen = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))[:UNIFORMITY_NODES]
    unit = normalize(table.take(chosen).double(), dim=1)
    return float(torch.pdist(unit).square_().mul_(-2).exp_().mean().log())
