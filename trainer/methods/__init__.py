"""Learning methods, each behind the same hooks (trainer.methods.interface); the loop knows none of them by name."""

from __future__ import annotations

from trainer.config import TrainSpec
from trainer.methods.interface import Method
from trainer.methods.nml import NegativeMetricLearning
from trainer.nn.inputs import Inputs

_METHODS: dict[str, type[Method]] = {"nml": NegativeMetricLearning}


def build_method(spec: TrainSpec, inputs: Inputs) -> Method:
    """The method a spec names, with fresh weights drawn from the run's seed."""
    return _METHODS[spec.method](spec, inputs)
