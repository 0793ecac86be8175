"""Learning methods, each behind the same hooks (trainer.methods.interface); the loop knows none of them by name."""

from __future__ import annotations

import torch

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.distributed.team import Team
from trainer.methods.interface import Method
from trainer.methods.nml import NegativeMetricLearning

_METHODS = {"nml": NegativeMetricLearning}


def build_method(spec: TrainSpec, graph: Graph, device: torch.device | None = None, team: Team | None = None) -> Method:
    """The method a planned spec names, with fresh weights drawn from the run's seed."""
    return _METHODS[spec.method](spec, graph, device or torch.device("cpu"), team or Team.solo())
