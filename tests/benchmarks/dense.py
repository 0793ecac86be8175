"""The loss and the epoch as the authors' code computes them: N×N matrices kept by autograd, each direction by itself.

Written from the description in the paper and our notes on the published code; it is the yardstick of the benchmarks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch_geometric.nn import GCNConv
from torch_geometric.utils import dropout_edge


def published_loss(u: Tensor, v: Tensor, h: Tensor, g: Tensor, *, tau: float, reg: float) -> Tensor:
    """Both directions, each with its own products, exponentials before logarithms."""
    return (_direction(u, v, h, g, tau, reg) + _direction(v, u, g, h, tau, reg)) / 2


def _direction(u: Tensor, v: Tensor, h: Tensor, g: Tensor, tau: float, reg: float) -> Tensor:
    n = len(u)
    similarity = torch.exp(u @ v.T / tau)
    m = torch.softmax(h @ g.T, dim=1)
    negatives = ((n - 1) * m * similarity).sum(1)
    nml = -torch.log(similarity.diag() / (similarity.diag() + negatives))
    kl = (torch.log((1 / n) / m) / n).sum(1)
    return (nml + reg * kl).mean()


def published_infonce(u: Tensor, v: Tensor, *, tau: float) -> Tensor:
    """GRACE's loss of embeddings u, v: similarities between and within views for each direction by itself."""
    u, v = normalize(u), normalize(v)
    return (_infonce_direction(u, v, tau) + _infonce_direction(v, u, tau)).mean() / 2


def _infonce_direction(u: Tensor, v: Tensor, tau: float) -> Tensor:
    between, within = torch.exp(u @ v.T / tau), torch.exp(u @ u.T / tau)
    return -torch.log(between.diag() / (between.sum(1) + within.sum(1) - within.diag()))


class PublishedModel(nn.Module):
    """Encoder and siamese metric with one Adam, phases by requires_grad, views encoded anew before each step."""

    def __init__(self, x: Tensor, edge_index: Tensor, *, tau: float, alpha: float, lr: float, inner_steps: int):
        super().__init__()
        self.x, self.edge_index = x, edge_index
        self.tau, self.reg, self.inner_steps = tau, alpha * (len(x) - 1), inner_steps
        self.encoder = nn.ModuleList([GCNConv(x.shape[1], 512), GCNConv(512, 512)])
        self.metric = nn.Sequential(nn.Linear(512, 512), nn.RReLU(), nn.Linear(512, 512))
        self.activation = nn.RReLU()
        self.optimiser = torch.optim.Adam(self.parameters(), lr=lr)

    def epoch(self, edge_drop: float = 0.4, feature_mask: float = 0.1) -> float:
        views = []
        for _ in range(2):
            columns = (torch.rand(self.x.shape[1]) >= feature_mask).to(self.x.dtype)
            views.append((self.x * columns, dropout_edge(self.edge_index, p=edge_drop)[0]))
        for step in range(self.inner_steps + 1):
            of_metric = step < self.inner_steps
            self.encoder.requires_grad_(not of_metric)
            self.metric.requires_grad_(of_metric)
            (u, v) = (self._encode(*view) for view in views)
            loss = published_loss(
                normalize(u),
                normalize(v),
                normalize(self.metric(u)),
                normalize(self.metric(v)),
                tau=self.tau,
                reg=self.reg,
            )
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        assert math.isfinite(loss.item())
        return loss.item()

    def _encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first, second = self.encoder
        return second(self.activation(first(x, edge_index)), edge_index)
