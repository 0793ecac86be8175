"""What an anchor meets: its batch, a bank of latest embeddings, or the whole graph."""

from __future__ import annotations

import math

import pytest
import torch

from tests.trainer.methods.epochs import train_epoch
from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.errors import InvalidInput
from trainer.files.documents import apply_overrides
from trainer.learning.learner import Learner
from trainer.spec.data import DataSpec, SyntheticSpec

GRAPH = DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=240, classes=3, features=30, active_features=5))
DOCUMENT = {
    "data": {"name": "synthetic"}, "encoder": {"hidden": 16, "dim": 16},
    "method": {"inner_steps": 2, "metric": {"hidden": 16}}, "optimiser": {"lr": 0.005},
    "sampling": {"batch_size": 50, "num_neighbors": [5, 5]},
}  # fmt: skip


@pytest.fixture(scope="module")
def graph():
    return load(GRAPH)


def build(graph, scope, *overrides):
    return Learner(parse_spec(apply_overrides(DOCUMENT, [f"sampling.negatives={scope}", *overrides])), graph)


@pytest.mark.parametrize("scope", ["batch", "bank", "graph"])
@pytest.mark.parametrize("kind", ["siamese_negcos", "two_tower", "uniform", "cosine"])
def test_every_scope_learns_with_every_factored_metric(graph, scope, kind):
    learner = build(graph, scope, f"method.metric.kind={kind}", "optimiser.lr=0.001")  # a bank wants a slow encoder
    losses = [train_epoch(learner, epoch)["nml"] for epoch in range(1, 10)]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert all(math.isfinite(loss) for loss in losses)
    step = next(iter(learner.steps_of(10)))
    learner.step(step)
    report = learner.diagnose(step)
    assert all(math.isfinite(value) for value in report.values())


@pytest.mark.parametrize("kind", ["pair_mlp", "closed_form"])
def test_metrics_on_single_pairs_work_in_a_batch_but_not_with_a_bank(graph, kind):
    losses = [train_epoch(build(graph, "batch", f"method.metric.kind={kind}"), epoch)["nml"] for epoch in (1, 2)]
    assert all(math.isfinite(loss) for loss in losses)
    with pytest.raises(InvalidInput, match="siamese_negcos"):
        build(graph, "bank", f"method.metric.kind={kind}")


def test_an_epoch_takes_a_step_per_batch_or_one_for_the_whole_graph(graph):
    assert build(graph, "batch").steps == 5
    assert build(graph, "bank").steps == 5
    assert build(graph, "graph").steps == 1


def test_with_all_nodes_in_the_batch_the_scopes_have_the_same_loss(graph):
    everything = ["sampling.batch_size=240", "sampling.num_neighbors=[-1, -1]", "run.dtype=float64",
                  "augment.feature_mask=[0, 0]"]  # fmt: skip
    losses = []
    for scope in ("graph", "batch", "bank"):
        learner = build(graph, scope, *everything)
        (step,) = learner.steps_of(1)
        losses.append(learner.spec.method.loss(learner, step).metrics)
    for name in ("loss", "nml", "kl", "i_nml", "i_nce"):
        assert losses[1][name] == pytest.approx(losses[0][name], rel=1e-9)
        assert losses[2][name] == pytest.approx(losses[0][name], rel=1e-9)


def test_scale_says_which_n_the_loss_counts(graph):
    alpha = ["method.reg.scale=n_minus_1", "method.reg.coefficient=0.1"]
    as_graph, as_scope = (
        build(graph, "batch", f"sampling.scale={scale}", *alpha).parts["contrast"] for scale in ("graph", "scope")
    )
    assert (as_graph.factor, as_scope.factor) == (239, 49)
    assert as_graph.reg == pytest.approx(23.9)
    assert as_scope.reg == pytest.approx(4.9)
    assert build(graph, "bank", "sampling.scale=scope").parts["contrast"].factor == 239  # its negatives are all nodes


def test_the_bank_holds_the_latest_embeddings_outside_of_autograd_and_tells_their_age(graph):
    learner = build(graph, "bank")
    bank = learner.parts["contrast"].bank
    assert not bank.is_full
    ages = []
    for step in learner.steps_of(1):
        assert bank.is_full
        assert not bank.u.requires_grad
        nodes, (u, v) = step.views.nodes, step.embeddings
        torch.testing.assert_close(bank.u[nodes], torch.nn.functional.normalize(u.detach()))
        torch.testing.assert_close(bank.v[nodes], torch.nn.functional.normalize(v.detach()))
        assert (bank.seen[nodes] == bank.step).all()
        ages.append(learner.step(step)["bank_staleness"])
    assert ages[0] == pytest.approx(192 / 240)  # all but the batch's 48 rows are one step old
    assert ages == sorted(ages)
    later = train_epoch(learner, 2)["bank_staleness"]
    assert 1 < later < learner.steps
    assert "parts.contrast.bank.u" in learner.state_dict()  # a resumed run goes on with the same table
