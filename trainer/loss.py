"""The NML-GCL objective: a thin public function over the tiled kernel, and the readable dense form it must equal.

L_NML(i) = −log[ e^{z_ii/τ} / ( e^{z_ii/τ} + (N−1) Σ_j m_ij e^{z_ij/τ} ) ],   m_ij = softmax_j(s_ij)
objective = mean_i [ L_NML(i) + a KL(P0 ‖ m_i) ], averaged over view 1→2 and view 2→1 (column softmax of the same s)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.nn.contrast import contrast


def nml_loss(u: Tensor, v: Tensor, h: Tensor, g: Tensor, *, tau: float, reg: float, tile: int | None = None) -> Tensor:
    """The exact objective in O(tile² + N d) memory, differentiable once in all four arguments.

    Args:
        u, v: unit embeddings of the two views, [N, d].
        h, g: factors of the metric, s_ij = h_i · g_j, [N, k]; h carries sign and scale.
        tau: temperature.
        reg: total KL coefficient a (the paper's α times N−1).
        tile: side of the tiles; None picks one that stays in cache.

    Raises:
        ValueError: shapes that do not fit, N < 2, or 1/τ + |s| too large for the dtype.

    Example:
        >>> u, v, h, g = (torch.nn.functional.normalize(torch.randn(100, 16)) for _ in range(4))
        >>> nml_loss(u, v, -h, g, tau=0.5, reg=3.0).shape
        torch.Size([])
    """
    if not tau > 0:
        raise ValueError(f"tau is {tau}; it must be positive")
    terms = contrast(u / tau, v, h, g, tile=tile, with_nce=False)
    return terms.nml + reg * terms.kl


def nml_loss_reference(
    u: Tensor, v: Tensor, h: Tensor, g: Tensor, *, tau: float, reg: float, tile: int | None = None
) -> Tensor:
    """The formula as the paper prints it, with N×N matrices; `tile` is ignored."""
    z, s = u @ v.T / tau, h @ g.T
    return (_one_direction(z, s, reg) + _one_direction(z.T, s.T, reg)) / 2


def _one_direction(z: Tensor, s: Tensor, reg: float) -> Tensor:
    n = len(z)
    m = torch.softmax(s, dim=1)
    positive = z.diagonal().exp()
    nml = -torch.log(positive / (positive + (n - 1) * (m * z.exp()).sum(1)))
    kl = -math.log(n) - m.log().mean(1)  # Σ_j (1/N) log( (1/N) / m_ij )
    return (nml + reg * kl).mean()
