"""A method at work on a graph: what the training loop steps, and what a checkpoint holds.

for step in learner.steps_of(epoch):       one encoder step each
    learner.step(step)
learner.encoder                            what is exported, in eval mode on the clean graph
learner.state_dict(), learner.optimisers   everything a checkpoint must hold

All randomness comes from trainer.data.seeds, so that state is weights and tables only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.data.seeds import generator
from trainer.distributed.team import Team
from trainer.encoding import build_encoding
from trainer.encoding.tables import encode_all
from trainer.errors import NonFinite
from trainer.learning.optimiser import build_optimiser, rate_at
from trainer.learning.patience import Patience
from trainer.loss.tiled import TileMemory
from trainer.methods.interface import Step
from trainer.nn.encoder import Encoder
from trainer.spec.training import DEFAULT_KEEP_MB


class Learner(nn.Module):
    """The encoder, whatever else the method trains or keeps, and the optimisers of both."""

    def __init__(self, spec: TrainSpec, graph: Graph, device: torch.device | None = None, team: Team | None = None):
        super().__init__()
        self.spec, self.graph, self.team = spec, graph, team or Team.solo()
        self.device, self.dtype = device or torch.device("cpu"), getattr(torch, spec.run.dtype)
        self.encoder = Encoder(graph.num_features, spec.encoder, generator=self.generator("encoder"))
        self.parts = nn.ModuleDict()
        self.tiles = TileMemory(DEFAULT_KEEP_MB if spec.sampling.keep_mb is None else spec.sampling.keep_mb)
        spec.method.build(self)
        self.to(device=self.device, dtype=self.dtype)
        patience = spec.optimiser.patience  # only now: its best loss stays float64, or equal losses would seem lower
        self.patience = Patience(self.encoder, patience) if patience is not None else None
        self.encoding = build_encoding(spec, graph, self.encoder, self.team, self.device, self.dtype)
        self.steps = self.encoding.steps
        self.total_steps = self.steps * spec.optimiser.epochs
        share = 1 / self.steps if spec.optimiser.lr_scaling == "linear" else 1.0
        self.optimisers = spec.method.inner_optimisers(self, share)
        self.trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        self._rate = share * spec.optimiser.lr
        if self.trained:
            self.optimisers["encoder"] = build_optimiser(spec.optimiser, self.trained, self._rate)

    def generator(self, purpose: str, *place: int) -> torch.Generator:
        """A random stream of the run, named by what it is for and where in the run it is drawn from."""
        return generator(self.spec.run.seed, purpose, *place)

    def encode_all(self, epoch: int, project: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Every node in both views of an epoch, outside of autograd (trainer.encoding.tables)."""
        return encode_all(self.encoding, self.team, self.graph.num_nodes, epoch, project)

    def steps_of(self, epoch: int, start: int = 0) -> Iterator[Step]:
        """The epoch's steps, from step `start` on, with their embeddings."""
        self.train()
        if start == 0:
            self.spec.method.before_epoch(self, epoch)
        for index, views in enumerate(self.encoding.pairs(epoch, start), start):
            step = Step(views, epoch, (epoch - 1) * self.steps + index)
            step.embeddings = self.spec.method.encode(self, step)
            self.tiles.forget_z()
            yield step

    def step(self, step: Step) -> dict[str, float]:
        """Solve the inner problem, then step the encoder; returns the step's figures.

        Raises:
            NonFinite: the loss is NaN or infinite; the encoder was not stepped.
        """
        method = self.spec.method
        method.inner(self, step)
        loss = method.loss(self, step)
        if not math.isfinite(loss.metrics["loss"]):
            raise NonFinite(f"the loss is {loss.metrics['loss']}. Lower optimiser.lr or raise the temperature.")
        if self.trained:
            optimiser = self.optimisers["encoder"]
            optimiser.zero_grad(set_to_none=True)
            step.views.backward(loss.total)
            self.team.sum_gradients(self.trained)
            for group in optimiser.param_groups:
                group["lr"] = rate_at(self.spec.optimiser, self._rate, step.number, self.steps, self.total_steps)
            optimiser.step()
        method.after_step(self, step)
        return loss.metrics

    def diagnose(self, step: Step) -> Mapping[str, float]:
        """Figures about a step that training does not need."""
        return self.spec.method.diagnose(self, step)

    def take_note(self, figures: Mapping[str, float]) -> None:
        """After an epoch, for `optimiser.patience`."""
        if self.patience is not None:
            self.patience.take_note(self.encoder, figures["loss"])

    @property
    def is_done(self) -> bool:
        """Whether `optimiser.patience` has run out."""
        return self.patience is not None and self.patience.has_run_out

    def finished_encoder(self) -> Encoder:
        """What is exported: the encoder, where patience was asked for as it was in its best epoch."""
        if self.patience is not None:
            self.patience.restore(self.encoder)
        return self.encoder
