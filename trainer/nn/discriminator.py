"""f(h, g) = hᵀ W g + b: how much a node's embedding goes with a summary of a graph (DGI, MVGRL; methods 4.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Discriminator(nn.Module):
    """Bilinear; W starts as the published code has it, uniform up to √(6 / (d² + d))."""

    def __init__(self, dim: int, *, generator: torch.Generator):
        super().__init__()
        bound = (6 / (dim * dim + dim)) ** 0.5
        self.weight = nn.Parameter(torch.empty(dim, dim).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, rows: Tensor, summary: Tensor) -> Tensor:
        """[n, d], [d] -> [n] logits."""
        return rows @ (self.weight @ summary) + self.bias
