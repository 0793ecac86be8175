"""Two Beta distributions fitted to similarities by EM: how likely a negative of a given similarity is a true one.

    p(x) = π_t Beta(x; a_t, b_t) + π_f Beta(x; a_f, b_f),   P_t(x) = π_t Beta(x; a_t, b_t) / p(x)

The M-step is that of weighted moments: a = x̄ (x̄ (1 − x̄)/s² − 1), b = a (1 − x̄)/x̄ (methods 4.8). Moments are not the
maximum of the likelihood: two narrow components are told apart, but where both are wide the second one tends to end
between them, however many steps are taken. So it is in the published code, whose start and steps these are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_EDGE = 1e-4  # a Beta density may be infinite at 0 and 1


class BetaMixture(NamedTuple):
    """True negatives first, false ones second; [2] each."""

    share: Tensor
    a: Tensor
    b: Tensor

    @property
    def mean(self) -> Tensor:
        """Of each component."""
        return self.a / (self.a + self.b)

    def log_joint(self, x: Tensor) -> Tensor:
        """log π_k Beta(x; a_k, b_k).  [n] -> [2, n]."""
        x = x.double().clamp(_EDGE, 1 - _EDGE)
        a, b = self.a[:, None], self.b[:, None]
        norm = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        return self.share.log()[:, None] + norm + (a - 1) * x.log() + (b - 1) * torch.log1p(-x)

    def true_negative(self, x: Tensor) -> Tensor:
        """P_t(x).  [n] -> [n]."""
        return torch.softmax(self.log_joint(x), 0)[0]


def fit_beta_mixture(x: Tensor, *, false_share: float, steps: int = 10) -> BetaMixture:
    """From Beta(1, 2) for true and Beta(2, 1) for false negatives.  x: [n] in [0, 1]."""
    x = x.double().clamp(_EDGE, 1 - _EDGE)
    start = [[1 - false_share, false_share], [1.0, 2.0], [2.0, 1.0]]
    mixture = BetaMixture(*torch.tensor(start, dtype=torch.float64, device=x.device))
    for _ in range(steps):
        weight = torch.softmax(mixture.log_joint(x), 0)
        total = weight.sum(1).clamp_min(1e-12)
        mean = (weight @ x / total).clamp(_EDGE, 1 - _EDGE)
        variance = (weight * (x - mean[:, None]).square()).sum(1) / total
        spread = mean * (1 - mean)
        a = mean * (spread / variance.clamp(1e-12, None) - 1).clamp_min(1e-3)  # no Beta has a larger variance
        b = a * (1 - mean) / mean
        if b[1] < 1:
            b[1] = 1.01  # or the false ones' density would rise without bound towards 1
        mixture = BetaMixture(weight.sum(1) / len(x), a, b)
    return mixture
