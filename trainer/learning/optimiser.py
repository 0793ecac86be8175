"""The encoder's optimiser, and its learning rate as a function of the step: a resumed run has the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from trainer.spec.training import OptimiserSpec


def build_optimiser(spec: OptimiserSpec, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam adds weight decay to the gradient (L2), AdamW to the step."""
    kind = torch.optim.AdamW if spec.kind == "adamw" else torch.optim.Adam
    return kind(list(parameters), lr=lr, weight_decay=spec.weight_decay)


def rate_at(spec: OptimiserSpec, lr: float, step: int, steps: int, total: int) -> float:
    """The learning rate of step `step`: a linear rise over `warmup_epochs`, then constant, or a cosine down to 0.

    steps: of an epoch; total: of the run.
    """
    warmup = spec.warmup_epochs * steps
    if step < warmup:
        return lr * step / warmup
    if spec.schedule == "constant":
        return lr
    return lr * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))) / 2
