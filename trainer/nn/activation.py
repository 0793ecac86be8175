"""Activations with an explicit source of randomness, so that a seed fixes them and a replay repeats them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.spec.encoder import Activation as ActivationName

_LOWER, _UPPER = 1 / 8, 1 / 3  # RReLU's usual range


class Activation(nn.Module):
    """One of the named activations; `rrelu_random` draws a slope per element while training, its mean otherwise."""

    def __init__(self, name: ActivationName):
        super().__init__()
        self.name = name
        self.slope = nn.Parameter(torch.tensor(0.25)) if name == "prelu" else None

    @property
    def is_random(self) -> bool:
        return self.name == "rrelu_random"

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Elementwise. A generator is needed only by rrelu_random in training mode."""
        if self.slope is not None:
            return nn.functional.prelu(x, self.slope.reshape(1))
        if self.name == "relu":
            return x.relu()
        if self.name == "elu":
            return nn.functional.elu(x)
        if self.is_random and self.training:
            if generator is None:
                raise ValueError("rrelu_random needs a generator while training")
            slopes = torch.empty_like(x).uniform_(_LOWER, _UPPER, generator=generator)
            return torch.where(x >= 0, x, slopes * x)
        return nn.functional.leaky_relu(x, (_LOWER + _UPPER) / 2)
