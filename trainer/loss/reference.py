"""The losses with N×N matrices: slow, and plain enough to be checked against the papers by reading."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize


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


def infonce_reference(
    u: Tensor,
    v: Tensor,
    *,
    tau: float,
    weights: tuple[Tensor, Tensor],
    back: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """ℓ_i of anchors u_i and of anchors v_i with Num_i = s_ii, [N] each (trainer.loss.infonce).

    weights: W and W' with their diagonals, [N, N] each, of anchors u_i; back: those of anchors v_i, None for the same.
    """
    u, v = normalize(u), normalize(v)
    return _infonce(u, v, tau, *weights), _infonce(v, u, tau, *(back or weights))


def _infonce(anchors: Tensor, others: Tensor, tau: float, inter: Tensor, intra: Tensor) -> Tensor:
    s, s_intra = torch.exp(anchors @ others.T / tau), torch.exp(anchors @ anchors.T / tau)
    return -torch.log(s.diagonal() / ((inter * s).sum(1) + (intra * s_intra).sum(1)))
