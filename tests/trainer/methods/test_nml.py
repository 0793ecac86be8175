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
from trainer.loss import nml_loss_reference
from trainer.methods import build_method
from trainer.spec.data import DataSpec, SyntheticSpec

GRAPH = DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=150, classes=3, features=30, active_features=5))


@pytest.fixture(scope="module")
def graph():
    return load(GRAPH)


def build(graph, *overrides):
    document = {
        "data": {"name": "synthetic", "synthetic": GRAPH.synthetic.model_dump()},
        "encoder": {"hidden": 16, "dim": 16},
        "metric": {"hidden": 16},
    }
    spec = parse_spec(apply_overrides(document, list(overrides)))
    return build_method(spec, graph)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def moved(before, module):
    return {name for name, value in module.state_dict().items() if not torch.equal(before[name], value)}


def only(views):
    (one,) = views
    return one


@pytest.mark.parametrize("recompute", ["true", "false"])
def test_each_phase_moves_its_own_part_only(graph, recompute):
    method = build(graph, f"objective.inner_recompute={recompute}", "objective.detach_metric=false",
                   "encoder.activation=rrelu_random", "optimiser.weight_decay=0.01")  # fmt: skip
    views = only(method.views(1))
    encoder, metric = state(method.encoder), state(method.metric)
    method.inner(views)
    assert moved(encoder, method.encoder) == set()
    assert moved(metric, method.metric)
    metric = state(method.metric)
    method.backward(method.loss(views), views)
    method.optimisers["encoder"].step()
    assert moved(encoder, method.encoder)
    assert moved(metric, method.metric) == set()


@pytest.mark.parametrize("detach", [True, False])
def test_encoder_gradient_equals_the_dense_reference_through_the_whole_model(graph, detach):
    method = build(graph, f"objective.detach_metric={str(detach).lower()}", "sampling.tile=64", "run.dtype=float64")
    views = only(method.views(1))
    loss = method.loss(views)
    loss.total.backward()
    mine = method.encoder.weights[0].grad.clone()

    method.zero_grad()
    fresh = only(method.views(1))
    u, v = fresh.u, fresh.v
    h, g = method.metric(u.detach() if detach else u, v.detach() if detach else v)
    expected = nml_loss_reference(normalize(u), normalize(v), h, g, tau=0.5, reg=3.0)
    expected.backward()
    torch.testing.assert_close(loss.total.detach(), expected.detach())
    torch.testing.assert_close(mine, method.encoder.weights[0].grad)


@pytest.mark.parametrize(
    "kind", ["siamese_cos", "siamese_negcos", "two_tower", "pair_mlp", "closed_form", "uniform", "cosine"]
)
def test_every_form_trains_and_reports(graph, kind):
    method = build(graph, f"metric.kind={kind}", "optimiser.lr=0.005")
    losses = []
    for epoch in range(1, 9):
        losses.append(train_epoch(method, epoch)["nml"])
    assert losses[-1] < losses[0]
    views = only(method.views(9))
    method.step(views)
    report = method.diagnose(views)
    assert all(math.isfinite(value) for value in report.values())
    assert ("metric" in method.optimisers) == (kind in ("siamese_cos", "siamese_negcos", "two_tower", "pair_mlp"))
    if kind == "uniform":
        assert report["weight_fn"] == pytest.approx(1)
        assert not report["weight_active"]
    if kind in ("cosine", "closed_form"):
        assert report["weight_fn"] < report["weight_tn"]


def test_mi_estimates_follow_from_the_losses(graph):
    method = build(graph)
    metrics = method.loss(only(method.views(1))).metrics
    assert metrics["i_nml"] == pytest.approx(math.log(150) - metrics["nml"])
    assert metrics["reg"] == pytest.approx(3.0 * metrics["kl"])
    assert metrics["loss"] == pytest.approx(metrics["nml"] + metrics["reg"], rel=1e-5)


def test_embedding_is_in_eval_mode_and_needs_no_randomness(graph):
    method = build(graph, "encoder.activation=rrelu_random")
    only(method.views(1))
    assert torch.equal(method.encoding.embed(), method.encoding.embed())


def test_views_of_an_epoch_can_be_drawn_again(graph):
    method = build(graph)
    assert torch.equal(only(method.views(3)).u, only(method.views(3)).u)
    assert not torch.equal(only(method.views(3)).u, only(method.views(4)).u)
