"""Specs of any method that train in a moment, and the graph they train on."""

from __future__ import annotations

from typing import Any

from trainer.config import TrainSpec, parse_spec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.learning.learner import Learner
from trainer.methods import BY_NAME
from trainer.presets import merged, preset_document

GRAPH: dict[str, Any] = {
    "name": "synthetic", "synthetic": {"nodes": 90, "classes": 3, "degree": 5, "features": 24, "active_features": 5},
}  # fmt: skip
EPOCHS = 4
SETTINGS: dict[str, dict[str, Any]] = {}  # of methods that need more than others to be small


def small_spec(name: str, over: dict[str, Any] | None = None) -> TrainSpec:
    """The method's preset with narrow layers and few epochs, in float64; `over` has the last word."""
    document = preset_document(name, "synthetic")
    small: dict[str, Any] = {
        "data": GRAPH, "encoder": {"hidden": 12, "dim": 8},
        "evaluation": {"probe_epochs": 10, "cluster_seeds": 1, "figures": False},
        "run": {"dtype": "float64", "track": False, "threads": 1, "diagnose_every": 0, "checkpoint_every": 1},
    }  # fmt: skip
    if BY_NAME[name].learns:
        small["optimiser"] = {"epochs": EPOCHS, "warmup_epochs": 0}
    for layer in (small, SETTINGS.get(name, {}), over or {}):
        document = merged(document, layer)
    return parse_spec(document)


def small_graph() -> Graph:
    return load(parse_spec({"data": GRAPH}).data)


def learner_of(name: str, over: dict[str, Any] | None = None) -> Learner:
    """Built, and not yet trained: with a batch_size it trains in batches, else on the whole graph."""
    sampling: dict[str, Any] = {"negatives": "graph", "tile": 32, "keep_mb": 0}
    if "batch_size" in (over or {}).get("sampling", {}):
        sampling = {"negatives": "batch", "tile": 32, "keep_mb": 0, "num_neighbors": [4, 4]}
    return Learner(small_spec(name, merged({"sampling": sampling}, over or {})), small_graph())


def train_epochs(learner: Learner, first: int, last: int) -> list[dict[str, float]]:
    """The figures of every step of these epochs."""
    return [learner.step(step) for epoch in range(first, last + 1) for step in learner.steps_of(epoch)]
