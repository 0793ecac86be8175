"""What the training loop asks of a method (methods 1.6), in the order it asks.

method = M(spec, inputs)                       set up: weights, diffusion, masks
each epoch:
    views = method.views(epoch)                draw and encode
    method.inner(views, epoch)                 steps on anything but the encoder: metric, mixtures, self-expression
    loss = method.loss(views)                  one encoder step follows, by the loop
    method.after_step()                        moving averages, clamps
method.embed()                                 eval mode, clean graph, no gradient
method.state_dict(), method.optimisers         everything a checkpoint must hold
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import TrainSpec
from trainer.nn.inputs import Inputs


@dataclass
class Loss:
    """The scalar to step on, and figures of the epoch for the event log."""

    total: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """One way of learning node embeddings. All randomness comes from trainer.seeds, so state is weights only."""

    optimisers: dict[str, torch.optim.Optimizer]  # "encoder" is stepped by the loop, others by the method itself

    def __init__(self, spec: TrainSpec, inputs: Inputs):
        super().__init__()
        self.spec, self.inputs = spec, inputs

    @abstractmethod
    def views(self, epoch: int) -> Any:
        """Draw the epoch's views."""

    def inner(self, views: Any, epoch: int) -> None:
        """Solve the inner problem on these views; must leave the encoder bit-identical."""

    @abstractmethod
    def loss(self, views: Any) -> Loss:
        """What the encoder minimises on these views."""

    def after_step(self) -> None:
        """Whatever follows the encoder's step."""

    def diagnose(self, views: Any) -> dict[str, float]:
        """Figures about these views that training does not need."""
        return {}

    @abstractmethod
    def embed(self) -> Tensor:
        """Embeddings of the clean graph in eval mode.  [N, dim]."""
