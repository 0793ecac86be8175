"""The latest embeddings of all nodes, as negatives for the anchors of a batch (scope `bank`, design section 3).

The table is outside the autograd graph. A row is as old as the last batch that held its node, up to an epoch;
`staleness` tells the mean age in steps. Memory: 2 N × dim floats, and as much again for the metric's outputs on them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from trainer.nn.metric import FactorMetric

_ROWS = 65_536  # rows the metric sees at once


class Bank(nn.Module):
    """Unit embeddings of both views with their norms; part of the checkpoint, so a resumed run has the same table."""

    u: Tensor
    v: Tensor
    norms: Tensor
    seen: Tensor
    step: Tensor

    def __init__(self, num_nodes: int, dim: int):
        super().__init__()
        self.register_buffer("u", torch.zeros(num_nodes, dim))
        self.register_buffer("v", torch.zeros(num_nodes, dim))
        self.register_buffer("norms", torch.zeros(2, num_nodes))
        self.register_buffer("seen", torch.full((num_nodes,), -1))  # step in which a row was written, -1: never
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    @property
    def is_full(self) -> bool:
        return bool((self.seen >= 0).all())

    @torch.no_grad()
    def refresh(self, nodes: Tensor, u: Tensor, v: Tensor) -> None:
        """Write these nodes' embeddings.  nodes: [n]; u, v: [n, d]."""
        nodes = nodes.to(self.u.device)
        for table, norms, fresh in ((self.u, self.norms[0], u), (self.v, self.norms[1], v)):
            table[nodes] = normalize(fresh)
            norms[nodes] = torch.linalg.vector_norm(fresh, dim=1)
        self.seen[nodes] = self.step

    def staleness(self) -> float:
        """Mean age of the rows, in steps."""
        return float((self.step - self.seen).double().mean())

    @torch.no_grad()
    def weigh(self, metric: FactorMetric, noise: torch.Generator) -> tuple[Tensor | None, Tensor | None]:
        """The metric's factors h of view 1 and g of view 2 for all rows, [N, k] each, or None for uniform weights."""
        h: Tensor | None = None
        g: Tensor | None = None
        for start in range(0, len(self.u), _ROWS):
            rows = slice(start, start + _ROWS)
            u, v = (table[rows] * norms[rows, None] for table, norms in zip((self.u, self.v), self.norms, strict=True))
            part_h, part_g = metric(u, v, noise)
            if part_h is None or part_g is None:
                return None, None
            if h is None or g is None:
                h, g = (part.new_empty(len(self.u), part.shape[1]) for part in (part_h, part_g))
            h[rows], g[rows] = part_h, part_g
        return h, g
