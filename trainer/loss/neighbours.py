"""Further positives beside a node itself, each with a weight of its own: what HomoGCL and GRAPE add to InfoNCE.

    ℓ_i = −log[ Num_i / (Num_i + Neg_i) ],   Num_i = e^{cos(u_i, v_i)/τ} + Σ_j w_ij e^{cos(u_i, u_j)/τ}

The sum goes over stored pairs only, and gradients reach both the embeddings and the weights w. Neg_i comes from
trainer.loss.infonce, whose denominator already holds the node's own positive.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from trainer.nn.pairs import pair_dots
from trainer.nn.sparse import row_of_entry


def neighbour_sums(u: Tensor, pattern: Tensor, weights: Tensor, *, tau: float) -> Tensor:
    """Σ_j w_ij e^{cos(u_i, u_j)/τ} for each row of a CSR pattern.  u: [N, d], weights: [nnz] -> [N]."""
    unit = normalize(u)
    parts = weights * torch.exp(pair_dots(unit, unit, pattern) / tau)
    return torch.zeros_like(u[:, 0]).index_add(0, row_of_entry(pattern.crow_indices()), parts)


def with_neighbours(log_den: Tensor, positive: Tensor, sums: Tensor) -> Tensor:
    """ℓ_i from log(e^{t_ii} + Neg_i), t_ii and the neighbours' sums, all [N].

    Not in log space: a node without neighbours has sum 0. Exponents stay below those that infonce allows.
    """
    return torch.log(log_den.exp() + sums) - torch.log(positive.exp() + sums)
