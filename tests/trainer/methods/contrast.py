"""What tests of GRACE and of methods that weigh its negatives share: learners, dense losses, interrupted runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.distributed.team import Team
from trainer.learning.learner import Learner
from trainer.methods.interface import Step
from trainer.presets import merged
from trainer.run.checkpoint import Progress, load_newest, save_checkpoint
from trainer.spec.data import DataSpec, SyntheticSpec

DOCUMENT: dict[str, Any] = {
    "data": {"name": "synthetic"},
    "encoder": {"hidden": 16, "dim": 12, "last_activation": "prelu"},
    "augment": {"edge_drop": [0.3, 0.4], "feature_mask": [0.2, 0.3]},
    "optimiser": {"lr": 0.005, "epochs": 6},
    "sampling": {"tile": 64},
    "run": {"dtype": "float64"},
}
SAMPLED = {"batch_size": 40, "num_neighbors": [4, 4], "negatives": "batch"}
CACHED = {"batch_size": 40, "num_neighbors": [-1, -1], "negatives": "graph"}


def planted(nodes: int = 200) -> Graph:
    """A small graph with communities."""
    spec = SyntheticSpec(nodes=nodes, classes=3, features=30, active_features=5)
    return load(DataSpec(name="synthetic", synthetic=spec))


def learner_of(graph: Graph, method: dict[str, Any], team: Team | None = None, **sections: Any) -> Learner:
    """A learner in float64 on the whole graph, unless `sections` says otherwise."""
    return Learner(parse_spec(merged(DOCUMENT, {"method": method, **sections})), graph, team=team)


def only_step(learner: Learner, epoch: int) -> Step:
    """The one step of an epoch on the whole graph."""
    (step,) = learner.steps_of(epoch)
    return step


def train(learner: Learner, epochs: range) -> list[float]:
    """Losses of all steps."""
    return [learner.step(step)["loss"] for epoch in epochs for step in learner.steps_of(epoch)]


def gradients(learner: Learner) -> dict[str, Tensor]:
    """Of everything that is trained, by name; then cleared."""
    found = {name: part.grad.clone() for name, part in learner.named_parameters() if part.grad is not None}
    learner.zero_grad()
    return found


def projected(learner: Learner, embeddings: Tensor) -> Tensor:
    """Unit rows of the projector's output, by hand."""
    first, second = learner.parts["projector"].layers
    out = elu(embeddings @ first.weight.T + first.bias) @ second.weight.T + second.bias
    return out / out.norm(dim=1, keepdim=True)


def dense_loss(u: Tensor, v: Tensor, tau: float, weights: Tensor) -> Tensor:
    """GRACE with negatives weighted [N, N], the same for both views and directions; u, v: unit rows."""
    others = weights.clone().fill_diagonal_(0)
    total = u.new_zeros(())
    for a, b in ((u, v), (v, u)):
        inter, intra = (a @ b.T / tau).exp(), (a @ a.T / tau).exp()
        own = inter.diagonal()
        total = total - (own / (own + (others * inter).sum(1) + (others * intra).sum(1))).log().mean() / 2
    return total


def assert_close(mine: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert mine.keys() == expected.keys()
    for name, gradient in mine.items():
        scale = float(expected[name].abs().max()) + 1e-12
        assert float((gradient - expected[name]).abs().max()) <= tolerance * max(1.0, scale), name


def assert_resumes_to_the_bit(tmp_path: Path, graph: Graph, method: dict[str, Any], stop: int, **sections: Any) -> None:
    """Stopped after `stop` of 6 epochs and resumed from the checkpoint equals uninterrupted."""
    whole, first = (learner_of(graph, method, **sections) for _ in range(2))
    losses = train(whole, range(1, 7))
    before = train(first, range(1, stop + 1))
    save_checkpoint(tmp_path, first, Progress(stop), spec_hash="x", keep=1)
    resumed = learner_of(graph, method, **sections)
    assert load_newest(tmp_path, resumed, spec_hash="x").epoch == stop
    assert before + train(resumed, range(stop + 1, 7)) == losses
    state = resumed.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())
