"""The two halves of LOCAL-GCL (methods 4.4): closeness to neighbours, and log-sums over all nodes in linear time.

    log Σ_k e^{z_i·z_k/τ},   e^{z_i·z_k/τ} = e^{1/τ} e^{−‖z_i − z_k‖²/2τ} ≈ e^{1/τ} φ(z_i)·φ(z_k)
    φ(z) = D^{-1/2} [cos Ωz, sin Ωz],   rows of Ω drawn from N(0, I/τ)

Σ_k φ(z_k) is a single vector, so all sums cost O(N D d); rows are worked on in pieces and recomputed in backward, in
memory for one piece. The exact sums are trainer.loss.infonce.intra_log_sums.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from trainer.data.features import csr
from trainer.nn.sparse import SparseOperator

_PIECE = 2_048  # rows
_SMALLEST = 1e-8  # an estimate of a sum of kernels in [0, 1] may come out negative


class NeighbourMean(nn.Module):
    """Mean over the sources of the edges into each node, without its weights and itself; 0 where there are none."""

    indptr: Tensor
    indices: Tensor

    def __init__(self, indptr: Tensor, indices: Tensor):
        super().__init__()
        self.register_buffer("indptr", indptr, persistent=False)
        self.register_buffer("indices", indices.long(), persistent=False)
        self._operator: SparseOperator | None = None  # made where the module then is, in the precision of its rows

    def forward(self, rows: Tensor) -> Tensor:
        """[N, d] -> [N, d]."""
        if self._operator is None or self._operator.matrix.dtype != rows.dtype:
            degree = self.indptr.diff()
            value = torch.repeat_interleave(1 / degree.clamp_min(1).to(rows), degree)
            self._operator = SparseOperator(csr(self.indptr, self.indices, value, (len(rows), len(rows))))
        return self._operator @ rows


def draw_frequencies(count: int, dim: int, tau: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """Ω: [D, d], rows from N(0, I/τ)."""
    drawn = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return (drawn / tau**0.5).to(like)


def random_log_sums(z: Tensor, frequencies: Tensor, *, tau: float) -> Tensor:
    """Estimates of log Σ_k e^{cos(z_i, z_k)/τ}, [n]; the relative error of a sum grows like e^{1/τ}/√D.

    z: [n, d], normalised here; frequencies: `draw_frequencies`.
    """
    unit = normalize(z)
    pieces = unit.split(_PIECE)
    total = torch.stack([_recomputed(_sum_of_features, part, frequencies) for part in pieces]).sum(0)
    sums = torch.cat([_recomputed(_products, part, frequencies, total) for part in pieces])
    return sums.clamp_min(_SMALLEST).log() + 1 / tau


def _recomputed(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    found: Tensor = checkpoint(function, *arguments, use_reentrant=False)
    return found


def _features(unit: Tensor, frequencies: Tensor) -> Tensor:
    angles = unit @ frequencies.T
    return torch.cat([angles.cos(), angles.sin()], 1) / len(frequencies) ** 0.5


def _sum_of_features(unit: Tensor, frequencies: Tensor) -> Tensor:
    return _features(unit, frequencies).sum(0)


def _products(unit: Tensor, frequencies: Tensor, total: Tensor) -> Tensor:
    return _features(unit, frequencies) @ total
