"""The terms of the NML-GCL objective, from the log-sum-exps of trainer.loss.tiled (design section 3).

With A_i = LSE_j(s_ij + z_ij), B_i = LSE_j(s_ij) over the m negatives an anchor meets:

    L_NML(i) = softplus( log(factor) + A_i − B_i − z_ii )          factor: N−1, see `sampling.scale`
    KL(P0 ‖ P_i) = B_i − log m − h_i · mean_j(g_j)

Both are averaged over anchors and over view 1→2 and 2→1. Where several workers train together, each holds some anchors
and meets the negatives of all: the terms it returns are its share, and the shares add up to the whole.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from trainer.distributed.team import Team
from trainer.loss.tiled import LogSums, TileMemory, pair_sums


class Terms(NamedTuple):
    """The parts of the objective, each averaged over anchors and both directions; `nce` carries no gradient."""

    nml: Tensor  # L_NML
    kl: Tensor  # KL(P0 ‖ P_i)
    nce: Tensor  # InfoNCE on the same pairs, for the MI estimate

    def total(self, reg: float) -> Tensor:
        """What is minimised, with the KL coefficient a = `reg`."""
        return self.nml + reg * self.kl


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
    return nml_terms(u / tau, v, h, g, tile=tile, with_nce=False).total(reg)


def nml_terms(
    p: Tensor,
    v: Tensor,
    h: Tensor | None,
    g: Tensor | None,
    *,
    factor: float | None = None,
    tile: int | None = None,
    memory: TileMemory | None = None,
    with_nce: bool = True,
    team: Team | None = None,
) -> Terms:
    """Exact loss terms for z = p·v (p already divided by τ) and s = h·g; h = g = None means uniform weights.

    p, v, h, g: [n, d], row i of each belonging to the same node; factor: None for the number of negatives less one.
    With a team, rows are this worker's and negatives those of all workers.

    Raises:
        ValueError: fewer than two rows in all, shapes that differ, or similarities too large to exponentiate.
    """
    if p.shape != v.shape:
        raise ValueError(f"u and v must have equal shapes, got {tuple(p.shape)}, {tuple(v.shape)}")
    team = team or Team.solo()
    all_v = team.gather(v)
    all_g = None if g is None else team.gather(g)
    m = len(all_v)
    if m < 2:
        raise ValueError(f"contrast needs at least 2 nodes, got {m}")
    rows, columns = pair_sums(p, all_v, h, all_g, tile=tile, memory=memory, with_plain=with_nce)
    assert columns is not None
    columns = _over_workers(columns, len(p), team)
    mean_g = None if all_g is None else all_g.mean(0)
    mean_h = None if h is None else team.gather(h.sum(0, keepdim=True)).sum(0) / m
    positive = (p * v).sum(1)
    log_factor = math.log(m - 1 if factor is None else factor)
    forth = _one_direction(rows, positive, h, mean_g, m, m, log_factor)
    back = _one_direction(columns, positive, g, mean_h, m, m, log_factor)
    return Terms(*((a + b) / 2 for a, b in zip(forth, back, strict=True)))


def bank_terms(
    p: Tensor,
    positive: Tensor,
    bank: Tensor,
    h: Tensor | None,
    g: Tensor | None,
    *,
    factor: float,
    anchors: int,
    tile: int | None = None,
    with_nce: bool = True,
) -> Terms:
    """One direction of the terms: fresh anchors against a table that gradients do not reach.

    p: [n, d], anchors divided by τ; positive: [n], z of each anchor with its own fresh counterpart; bank: [m, d];
    h: [n, k]; g: [m, k], the metric's output for the table; anchors: number over which to average, n unless several
    workers share them.
    """
    rows, _ = pair_sums(p, bank, h, g, tile=tile, both=False, with_plain=with_nce)
    mean_g = None if g is None else g.mean(0)
    return _one_direction(rows, positive, h, mean_g, len(bank), anchors, math.log(factor))


def _one_direction(
    sums: LogSums, positive: Tensor, own: Tensor | None, mean: Tensor | None, m: int, anchors: int, log_factor: float
) -> Terms:
    """Sums over these anchors of L_NML, KL and InfoNCE, divided by the number of anchors in all."""
    nml = softplus(log_factor + sums.weighted - sums.mass - positive).sum()
    kl = (sums.mass - math.log(m)).sum()
    if own is not None and mean is not None:
        kl = kl - own.sum(0) @ mean
    nce = (sums.plain - positive).sum().detach()
    return Terms(nml / anchors, kl / anchors, nce / anchors)


def _over_workers(columns: LogSums, own: int, team: Team) -> LogSums:
    """Each worker has summed over its own rows; add the workers' sums and keep the columns of its own nodes."""
    if team.size == 1:
        return columns
    stacked = team.gather(torch.stack(columns).unsqueeze(0))  # [workers, 3, m]
    return LogSums(*stacked.logsumexp(0)[:, team.own_rows(own)].unbind())
