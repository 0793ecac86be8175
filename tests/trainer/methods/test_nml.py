"""NML-GCL behind the hooks: who moves when, and what is reported."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from tests.trainer.methods.epochs import train_epoch
from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.files.documents import apply_overrides
from trainer.learning.learner import Learner
from trainer.loss import nml_loss_reference
from trainer.spec.data import DataSpec, SyntheticSpec

GRAPH = DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=150, classes=3, features=30, active_features=5))


@pytest.fixture(scope="module")
def graph():
    return load(GRAPH)


def build(graph, *overrides):
    document = {
        "data": {"name": "synthetic", "synthetic": GRAPH.synthetic.model_dump()},
        "encoder": {"hidden": 16, "dim": 16},
        "method": {"metric": {"hidden": 16}},
    }
    spec = parse_spec(apply_overrides(document, list(overrides)))
    return Learner(spec, graph)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def moved(before, module):
    return {name for name, value in module.state_dict().items() if not torch.equal(before[name], value)}


def only(steps):
    (one,) = steps
    return one


@pytest.mark.parametrize("recompute", ["true", "false"])
def test_each_phase_moves_its_own_part_only(graph, recompute):
    learner = build(graph, f"method.inner_recompute={recompute}", "method.detach_metric=false",
                    "encoder.activation=rrelu_random", "optimiser.weight_decay=0.01")  # fmt: skip
    method, metric = learner.spec.method, learner.parts["contrast"].metric
    step = only(learner.steps_of(1))
    encoder_before, metric_before = state(learner.encoder), state(metric)
    method.inner(learner, step)
    assert moved(encoder_before, learner.encoder) == set()
    assert moved(metric_before, metric)
    metric_before = state(metric)
    step.views.backward(method.loss(learner, step).total)
    learner.optimisers["encoder"].step()
    assert moved(encoder_before, learner.encoder)
    assert moved(metric_before, metric) == set()


@pytest.mark.parametrize("detach", ["true", "false"])
def test_the_optimiser_of_the_encoder_never_holds_the_metric(graph, detach):
    learner = build(graph, f"method.detach_metric={detach}", "optimiser.weight_decay=0.5", "method.inner_steps=0")
    held = {id(value) for group in learner.optimisers["encoder"].param_groups for value in group["params"]}
    assert held == {id(value) for value in learner.encoder.parameters()}
    metric = state(learner.parts["contrast"].metric)
    train_epoch(learner, 1)
    assert moved(metric, learner.parts["contrast"].metric) == set()  # neither a gradient nor weight decay


def test_the_metric_has_a_rate_and_a_decay_of_its_own(graph):
    def rates(*overrides):
        (group,) = (
            build(graph, "optimiser.lr=0.02", "optimiser.weight_decay=0.3", *overrides)
            .optimisers["metric"]
            .param_groups
        )
        return group["lr"], group["weight_decay"]

    assert rates() == (0.02, 0.0)
    assert rates("method.metric_lr=0.001", "method.metric_weight_decay=0.1") == (0.001, 0.1)


@pytest.mark.parametrize("detach", [True, False])
def test_encoder_gradient_equals_the_dense_reference_through_the_whole_model(graph, detach):
    learner = build(graph, f"method.detach_metric={str(detach).lower()}", "sampling.tile=64", "run.dtype=float64")
    loss = learner.spec.method.loss(learner, only(learner.steps_of(1)))
    loss.total.backward()
    mine = learner.encoder.weights[0].grad.clone()

    learner.zero_grad()
    u, v = only(learner.steps_of(1)).embeddings
    h, g = learner.parts["contrast"].metric(u.detach() if detach else u, v.detach() if detach else v)
    expected = nml_loss_reference(normalize(u), normalize(v), h, g, tau=0.5, reg=3.0)
    expected.backward()
    torch.testing.assert_close(loss.total.detach(), expected.detach())
    torch.testing.assert_close(mine, learner.encoder.weights[0].grad)


@pytest.mark.parametrize(
    "kind", ["siamese_cos", "siamese_negcos", "two_tower", "pair_mlp", "closed_form", "uniform", "cosine"]
)
def test_every_form_trains_and_reports(graph, kind):
    learner = build(graph, f"method.metric.kind={kind}", "optimiser.lr=0.005")
    losses = []
    for epoch in range(1, 9):
        losses.append(train_epoch(learner, epoch)["nml"])
    assert losses[-1] < losses[0]
    step = only(learner.steps_of(9))
    learner.step(step)
    report = learner.diagnose(step)
    assert all(math.isfinite(value) for value in report.values())
    learned = kind in ("siamese_cos", "siamese_negcos", "two_tower", "pair_mlp")
    assert ("metric" in learner.optimisers) == learned == learner.spec.method.has_network
    if kind == "uniform":
        assert report["weight_fn"] == pytest.approx(1)
        assert not report["weight_active"]
    if kind in ("cosine", "closed_form"):
        assert report["weight_fn"] < report["weight_tn"]


def test_mi_estimates_follow_from_the_losses(graph):
    learner = build(graph)
    metrics = learner.spec.method.loss(learner, only(learner.steps_of(1))).metrics
    assert metrics["i_nml"] == pytest.approx(math.log(150) - metrics["nml"])
    assert metrics["reg"] == pytest.approx(3.0 * metrics["kl"])
    assert metrics["loss"] == pytest.approx(metrics["nml"] + metrics["reg"], rel=1e-5)


def test_embedding_is_in_eval_mode_and_needs_no_randomness(graph):
    learner = build(graph, "encoder.activation=rrelu_random")
    only(learner.steps_of(1))
    assert torch.equal(learner.encoding.embed(), learner.encoding.embed())


def test_views_of_an_epoch_can_be_drawn_again(graph):
    learner = build(graph)
    third, again, fourth = (only(learner.steps_of(epoch)).embeddings for epoch in (3, 3, 4))
    assert torch.equal(third[0], again[0])
    assert torch.equal(third[1], again[1])
    assert not torch.equal(third[0], fourth[0])
