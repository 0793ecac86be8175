"""One encoder step of any method, and the figures of an epoch made of such steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import NonFinite
from trainer.methods.interface import Method


def take_step(method: Method, views: Any) -> dict[str, float]:
    """Solve the inner problem, then step the encoder; returns the step's figures.

    Raises:
        NonFinite: the loss is NaN or infinite; nothing was stepped.
    """
    method.inner(views)
    loss = method.loss(views)
    if not math.isfinite(loss.metrics["loss"]):
        raise NonFinite(f"the loss is {loss.metrics['loss']}. Lower optimiser.lr or raise objective.temperature.")
    optimiser = method.optimisers["encoder"]
    optimiser.zero_grad(set_to_none=True)
    method.backward(loss, views)
    optimiser.step()
    method.after_step()
    return loss.metrics


def train_epoch(method: Method, epoch: int) -> dict[str, float]:
    """All steps of an epoch, with nothing around them; returns the means of their figures."""
    figures = EpochFigures()
    for views in method.views(epoch):
        figures.add(take_step(method, views))
    return figures.means()


@dataclass
class EpochFigures:
    """Sums over the steps of an epoch so far; a checkpoint in the middle of an epoch carries them."""

    steps: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, metrics: dict[str, float]) -> None:
        self.steps += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        return {name: total / self.steps for name, total in self.sums.items()}
