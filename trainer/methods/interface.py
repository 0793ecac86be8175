"""What the training loop asks of a method (methods 1.6), in the order it asks.

method = M(spec, graph, team)                  set up: weights, diffusion, masks
each epoch:
    for views in method.views(epoch):          draw; one encoder step follows for each
        method.step(views)
            method.inner(views)                steps on anything but the encoder: metric, mixtures, self-expression
            loss = method.loss(views)
            method.backward(loss, views)       then the encoder's optimiser steps
            method.after_step()                moving averages, clamps
method.encoder                                 what is exported, in eval mode on the clean graph
method.state_dict(), method.optimisers         everything a checkpoint must hold
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.distributed.team import Team
from trainer.errors import NonFinite
from trainer.nn.encoder import Encoder


@dataclass
class Loss:
    """The scalar to step on (in a team: this worker's share of it), and figures of the step for the event log."""

    total: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """One way of learning node embeddings. All randomness comes from trainer.data.seeds, so state is weights only."""

    encoder: Encoder
    optimisers: dict[str, torch.optim.Optimizer]  # "encoder" is stepped by `step`, others by `inner`
    steps: int  # encoder steps in an epoch

    def __init__(self, spec: TrainSpec, graph: Graph, team: Team):
        super().__init__()
        self.spec, self.graph, self.team = spec, graph, team

    @abstractmethod
    def views(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's views, one item per encoder step, from step `start` on."""

    def step(self, views: Any) -> dict[str, float]:
        """Solve the inner problem, then step the encoder; returns the step's figures.

        Raises:
            NonFinite: the loss is NaN or infinite; the encoder was not stepped.
        """
        self.inner(views)
        loss = self.loss(views)
        if not math.isfinite(loss.metrics["loss"]):
            raise NonFinite(f"the loss is {loss.metrics['loss']}. Lower optimiser.lr or raise objective.temperature.")
        optimiser = self.optimisers["encoder"]
        optimiser.zero_grad(set_to_none=True)
        self.backward(loss, views)
        optimiser.step()
        self.after_step()
        return loss.metrics

    def inner(self, views: Any) -> None:
        """Solve the inner problem on these views; must leave the encoder bit-identical."""

    @abstractmethod
    def loss(self, views: Any) -> Loss:
        """What the encoder minimises on these views."""

    def backward(self, loss: Loss, views: Any) -> None:
        """Add the loss's gradient to the encoder's, summed over the team."""
        loss.total.backward()
        self.team.sum_gradients(self.encoder.parameters())

    def after_step(self) -> None:
        """Whatever follows the encoder's step."""

    def diagnose(self, views: Any) -> dict[str, float]:
        """Figures about these views that training does not need."""
        return {}
