"""Linear layers with an activation between them: metrics, projectors and predictors, with a seed of their own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.nn.activation import Activation
from trainer.nn.products import matmul
from trainer.spec.encoder import Activation as ActivationName


class Mlp(nn.Module):
    """Linear, activation, … , Linear; Xavier weights and zero biases.

    Args:
        widths: of the input, the inner layers and the output.
    """

    def __init__(self, widths: Sequence[int], activation: ActivationName, *, generator: torch.Generator):
        super().__init__()
        self.layers = nn.ModuleList(
            linear(fan_in, fan_out, generator) for fan_in, fan_out in itertools.pairwise(widths)
        )
        self.activation = Activation(activation)

    def forward(self, x: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """[n, widths[0]] -> [n, widths[-1]]."""
        for layer in self.layers[:-1]:
            x = self.activation(_apply(layer, x), noise)
        return _apply(self.layers[-1], x)


def _apply(layer: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layer, nn.Linear)
    return matmul(x, layer.weight.T) + layer.bias


def linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    """One such layer."""
    layer = nn.Linear(fan_in, fan_out)
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
