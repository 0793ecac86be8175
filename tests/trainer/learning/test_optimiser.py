"""The learning rate is a function of the step, and weight decay is what its name says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.learning.learner import Learner
from trainer.learning.optimiser import build_optimiser, rate_at
from trainer.run.checkpoint import Progress, load_newest, save_checkpoint
from trainer.spec.data import DataSpec, SyntheticSpec
from trainer.spec.training import OptimiserSpec

STEPS, EPOCHS = 3, 8
TOTAL = STEPS * EPOCHS


def rates(**settings) -> list[float]:
    spec = OptimiserSpec(epochs=EPOCHS, **settings)
    return [rate_at(spec, 0.1, step, STEPS, TOTAL) for step in range(TOTAL)]


def test_without_a_schedule_the_rate_stays():
    assert rates() == [0.1] * TOTAL


def test_warm_up_rises_evenly_from_zero_and_then_stays():
    found = rates(warmup_epochs=2)
    assert found[:7] == pytest.approx([0.1 * step / 6 for step in range(7)])
    assert found[6:] == [0.1] * (TOTAL - 6)


def test_cosine_falls_from_the_rate_by_half_in_the_middle_to_nothing_at_the_end():
    found = rates(schedule="cosine")
    assert found[0] == 0.1
    assert found[TOTAL // 2] == pytest.approx(0.05)
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 0.001
    assert rate_at(OptimiserSpec(schedule="cosine"), 0.1, TOTAL, STEPS, TOTAL) == pytest.approx(0, abs=1e-12)


def test_cosine_begins_where_warm_up_ends_and_still_ends_with_the_run():
    found = rates(schedule="cosine", warmup_epochs=2)
    assert found[:7] == pytest.approx([0.1 * step / 6 for step in range(7)])
    left = TOTAL - 6
    assert found[6:] == pytest.approx([0.05 * (1 + math.cos(math.pi * step / left)) for step in range(left)])


def test_a_warm_up_as_long_as_the_run_never_reaches_the_rate():
    assert max(rates(schedule="cosine", warmup_epochs=EPOCHS)) < 0.1
    assert max(rates(schedule="cosine", warmup_epochs=2 * EPOCHS)) < 0.05


def stepped(kind: str, gradient: float) -> float:
    weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimiser = build_optimiser(OptimiserSpec(kind=kind, weight_decay=0.5), [weight], 0.1)
    weight.grad = torch.full_like(weight, gradient)
    optimiser.step()
    return float(weight.detach())


def test_adam_adds_decay_to_the_gradient_and_adamw_to_the_step():
    # Adam's first step is lr in the direction of the gradient, however large it is
    assert stepped("adam", 1.0) == pytest.approx(2 - 0.1)
    assert stepped("adam", 0.0) == pytest.approx(2 - 0.1)  # decay alone is a gradient
    assert stepped("adamw", 1.0) == pytest.approx(2 * (1 - 0.1 * 0.5) - 0.1)
    assert stepped("adamw", 0.0) == pytest.approx(2 * (1 - 0.1 * 0.5))


def test_a_resumed_run_has_the_same_rate_at_each_step(tmp_path):
    data = DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=90, classes=3, features=12, active_features=3))
    graph = load(data)
    spec = parse_spec({
        "data": {"name": "synthetic"}, "encoder": {"hidden": 8, "dim": 8}, "method": {"inner_steps": 0},
        "optimiser": {"epochs": 4, "lr": 0.1, "lr_scaling": "none", "schedule": "cosine", "warmup_epochs": 1},
        "sampling": {"negatives": "batch", "batch_size": 30, "num_neighbors": [4, 4]},
    })  # fmt: skip

    def trained(learner, progress):
        taken = []
        for epoch in range(progress.epoch + 1, 5):
            for step in learner.steps_of(epoch, progress.steps if epoch == progress.epoch + 1 else 0):
                learner.step(step)
                taken.append(learner.optimisers["encoder"].param_groups[0]["lr"])
                if step.number == 4:
                    save_checkpoint(tmp_path, learner, Progress(1, 2), spec_hash="a", keep=1)
        return taken

    whole = trained(Learner(spec, graph), Progress())
    assert whole == [rate_at(spec.optimiser, 0.1, step, 3, 12) for step in range(12)]
    resumed = Learner(spec, graph)
    progress = load_newest(tmp_path, resumed, spec_hash="a")
    assert trained(resumed, progress) == whole[5:]
