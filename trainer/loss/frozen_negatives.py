"""The weights of ProGCL (methods 4.8): how likely a negative is a true one, times its similarity, frozen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.loss.beta_mixture import BetaMixture, fit_beta_mixture
from trainer.loss.tile_weights import ComputedWeights, row_sums
from trainer.nn.products import product


class FrozenNegatives(nn.Module):
    """w_ij = B_ij / mean_{k≠i} B_ik, B_ij = P_t(x_ij) x_ij, x_ij = (cos(u_i, v_j) + 1)/2: frozen, rebuilt tile by tile.

    Held are the unit rows of both views, P_t(x) x at 4,096 points between which it is interpolated, and row means.
    """

    POINTS = 4_096

    u: Tensor
    v: Tensor
    curve: Tensor
    row_mean: Tensor
    fitted: Tensor

    def __init__(self, num_nodes: int, width: int):
        super().__init__()
        for name in ("u", "v"):
            self.register_buffer(name, torch.zeros(num_nodes, width))
        self.register_buffer("curve", torch.zeros(self.POINTS))
        self.register_buffer("row_mean", torch.ones(num_nodes))
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def is_fitted(self) -> bool:
        return bool(self.fitted)

    @torch.no_grad()
    def fit(
        self, u: Tensor, v: Tensor, columns: Tensor, *, false_share: float, steps: int, tile: int | None
    ) -> BetaMixture:
        """Freeze unit rows u and v, and fit the mixture to their cosines in some columns."""
        self.u.copy_(u)
        self.v.copy_(v)
        x = (self.u @ self.v[columns].T + 1) / 2
        others = torch.arange(len(u), device=u.device)[:, None] != columns.to(u.device)
        mixture = fit_beta_mixture(x[others], false_share=false_share, steps=steps)
        points = torch.linspace(0, 1, self.POINTS, dtype=torch.float64, device=u.device)
        self.curve.copy_(mixture.true_negative(points) * points)
        everyone = torch.arange(len(u), device=u.device)
        self.row_mean.fill_(1)
        sums = row_sums(self.weights(everyone), len(u), self.u, tile=tile)
        self.row_mean.copy_((sums / (len(u) - 1)).clamp_min(1e-12))
        self.fitted.fill_(True)
        return mixture

    def weights(self, nodes: Tensor) -> ComputedWeights:
        """Among some nodes; rows have mean 1 over all others of the graph."""
        mean = self.row_mean[nodes]
        return ComputedWeights(lambda rows, columns: self._likely(nodes[rows], nodes[columns]).div_(mean[rows, None]))

    def _likely(self, rows: Tensor, columns: Tensor) -> Tensor:
        """B of some nodes and others."""
        place = product(self.u[rows], self.v[columns].T)
        place = place.add_(1).mul_((self.POINTS - 1) / 2).clamp_(0, self.POINTS - 1)
        below = place.long().clamp_(max=self.POINTS - 2)
        low = self.curve[below]
        return low.add_((self.curve[below + 1] - low).mul_(place.sub_(below)))
