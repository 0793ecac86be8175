"""What the training loop asks of a method (methods 1.6), in the order it asks.

method = M(spec, graph, team)                  set up: weights, diffusion, masks
each epoch:
    for views in method.views(epoch):          draw; one encoder step follows for each
        method.inner(views)                    steps on anything but the encoder: metric, mixtures, self-expression
        loss = method.loss(views)
        method.backward(loss, views)           then the loop steps the encoder
        method.after_step()                    moving averages, clamps
method.encoder                                 what is exported, in eval mode on the clean graph
method.state_dict(), method.optimisers         everything a checkpoint must hold
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.nn.encoder import Encoder
from trainer.parallel.team import Team


@dataclass
class Loss:
    """The scalar to step on (in a team: this worker's share of it), and figures of the step for the event log."""

    total: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """One way of learning node embeddings. All randomness comes from trainer.data.seeds, so state is weights only."""

    encoder: Encoder
    optimisers: dict[str, torch.optim.Optimizer]  # "encoder" is stepped by the loop, others by the method itself
    steps: int  # encoder steps in an epoch

    def __init__(self, spec: TrainSpec, graph: Graph, team: Team):
        super().__init__()
        self.spec, self.graph, self.team = spec, graph, team

    @abstractmethod
    def views(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's views, one item per encoder step, from step `start` on."""

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
