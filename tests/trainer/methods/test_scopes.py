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
from trainer.methods import build_method
from trainer.spec.data import DataSpec, SyntheticSpec

GRAPH = DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=240, classes=3, features=30, active_features=5))
DOCUMENT = {
    "data": {"name": "synthetic"}, "encoder": {"hidden": 16, "dim": 16}, "metric": {"hidden": 16},
    "objective": {"inner_steps": 2}, "optimiser": {"lr": 0.005},
    "sampling": {"batch_size": 50, "num_neighbors": [5, 5]},
}  # fmt: skip


@pytest.fixture(scope="module")
def graph():
    return load(GRAPH)


def build(graph, scope, *overrides):
    return build_method(parse_spec(apply_overrides(DOCUMENT, [f"sampling.negatives={scope}", *overrides])), graph)


@pytest.mark.parametrize("scope", ["batch", "bank", "graph"])
@pytest.mark.parametrize("kind", ["siamese_negcos", "two_tower", "uniform", "cosine"])
def test_every_scope_learns_with_every_factored_metric(graph, scope, kind):
    method = build(graph, scope, f"metric.kind={kind}", "optimiser.lr=0.001")  # a bank wants a slow encoder
    losses = [train_epoch(method, epoch)["nml"] for epoch in range(1, 10)]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert all(math.isfinite(loss) for loss in losses)
    views = next(iter(method.views(10)))
    method.step(views)
    report = method.diagnose(views)
    assert all(math.isfinite(value) for value in report.values())


@pytest.mark.parametrize("kind", ["pair_mlp", "closed_form"])
def test_metrics_on_single_pairs_work_in_a_batch_but_not_with_a_bank(graph, kind):
    losses = [train_epoch(build(graph, "batch", f"metric.kind={kind}"), epoch)["nml"] for epoch in (1, 2)]
    assert all(math.isfinite(loss) for loss in losses)
    with pytest.raises(InvalidInput, match="siamese_negcos"):
        build(graph, "bank", f"metric.kind={kind}")


def test_an_epoch_takes_a_step_per_batch_or_one_for_the_whole_graph(graph):
    assert build(graph, "batch").steps == 5
    assert build(graph, "bank").steps == 5
    assert build(graph, "graph").steps == 1


def test_with_all_nodes_in_the_batch_the_scopes_have_the_same_loss(graph):
    everything = ["sampling.batch_size=240", "sampling.num_neighbors=[-1, -1]", "run.dtype=float64",
                  "augment.feature_mask=[0, 0]"]  # fmt: skip
    losses = []
    for scope in ("graph", "batch", "bank"):
        method = build(graph, scope, *everything)
        (views,) = method.views(1)
        losses.append(method.loss(views).metrics)
    for name in ("loss", "nml", "kl", "i_nml", "i_nce"):
        assert losses[1][name] == pytest.approx(losses[0][name], rel=1e-9)
        assert losses[2][name] == pytest.approx(losses[0][name], rel=1e-9)


def test_scale_says_which_n_the_loss_counts(graph):
    alpha = ["objective.reg.scale=n_minus_1", "objective.reg.coefficient=0.1"]
    as_graph, as_scope = (build(graph, "batch", f"sampling.scale={scale}", *alpha) for scale in ("graph", "scope"))
    assert (as_graph.factor, as_scope.factor) == (239, 49)
    assert as_graph.reg == pytest.approx(23.9)
    assert as_scope.reg == pytest.approx(4.9)
    assert build(graph, "bank", "sampling.scale=scope").factor == 239  # its negatives are all nodes


def test_the_bank_holds_the_latest_embeddings_outside_of_autograd_and_tells_their_age(graph):
    method = build(graph, "bank")
    assert not method.bank.is_full
    ages = []
    for views in method.views(1):
        bank = method.bank
        assert bank.is_full
        assert not bank.u.requires_grad
        torch.testing.assert_close(bank.u[views.pair.nodes], torch.nn.functional.normalize(views.u.detach()))
        assert (bank.seen[views.pair.nodes] == bank.step).all()
        ages.append(method.step(views)["bank_staleness"])
    assert ages[0] == pytest.approx(192 / 240)  # all but the batch's 48 rows are one step old
    assert ages == sorted(ages)
    later = train_epoch(method, 2)["bank_staleness"]
    assert 1 < later < method.steps
    assert "bank.u" in method.state_dict()  # a resumed run goes on with the same table
