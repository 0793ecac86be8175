"""The NML-GCL objective with N×N matrices: slow, and plain enough to be checked against the paper by reading."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def nml_loss_reference(
    u: Tensor, v: Tensor, h: Tensor, g: Tensor, *, tau: float, reg: float, tile: int | None = None
) -> Tensor:
    """The formula as the paper prints it; arguments are those of `nml_loss`, and `tile` is ignored."""
    z, s = u @ v.T / tau, h @ g.T
    return (_one_direction(z, s, reg) + _one_direction(z.T, s.T, reg)) / 2


def _one_direction(z: Tensor, s: Tensor, reg: float) -> Tensor:
    n = len(z)
    m = torch.softmax(s, dim=1)
    positive = z.diagonal().exp()
    nml = -torch.log(positive / (positive + (n - 1) * (m * z.exp()).sum(1)))
    kl = -math.log(n) - m.log().mean(1)  # Σ_j (1/N) log( (1/N) / m_ij )
    return (nml + reg * kl).mean()
