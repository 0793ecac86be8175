"""References: they are what they say, and nothing in them moves."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.methods.small_runs import learner_of, small_spec, train_epochs
from trainer.errors import InvalidInput
from trainer.methods import METHODS
from trainer.presets import preset_spec

REFERENCES = [str(method.model_fields["name"].default) for method in METHODS if not method.learns]


def dense(learner):
    """Â and X, dense."""
    n = learner.graph.num_nodes
    a = torch.eye(n, dtype=torch.float64)
    for target in range(n):
        for source in learner.graph.indices[learner.graph.indptr[target] : learner.graph.indptr[target + 1]].tolist():
            a[target, source] += 1
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale, learner.graph.x.to_dense().double()


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_learns_nothing_in_its_one_epoch(name):
    learner = learner_of(name)
    before = {key: value.clone() for key, value in learner.state_dict().items()}
    assert [figures["loss"] for figures in train_epochs(learner, 1, 1)] == [0]
    assert not learner.trained
    assert all(torch.equal(before[key], value) for key, value in learner.state_dict().items())
    with pytest.raises(InvalidInput, match=r"optimiser\.epochs to 1"):
        small_spec(name, {"optimiser": {"epochs": 2}})


def test_features_and_smoothed_features_are_what_they_say():
    learner = learner_of("sgc")
    adjacency, x = dense(learner)
    torch.testing.assert_close(learner.encoding.embed(), adjacency @ adjacency @ x)
    torch.testing.assert_close(learner_of("features").encoding.embed(), x)


def test_fastrp_is_the_weighted_sum_of_unit_powers():
    learner = learner_of("fastrp", {"encoder": {"powers": [2.0, 0.0, -1.0]}})
    adjacency, x = dense(learner)
    projected = adjacency @ x @ learner.encoder.weights[0].detach()
    third = adjacency @ adjacency @ projected
    expected = 2 * projected / projected.norm(dim=1, keepdim=True) - third / third.norm(dim=1, keepdim=True)
    torch.testing.assert_close(learner.encoding.embed(), expected)


def test_the_projection_of_fastrp_is_very_sparse_and_keeps_products_in_the_mean():
    learner = learner_of("fastrp", {"encoder": {"dim": 4_000}})
    p = learner.encoder.weights[0].detach()
    assert sorted(p.unique().tolist()) == pytest.approx([-(3**0.5), 0, 3**0.5])
    assert (p == 0).double().mean().item() == pytest.approx(2 / 3, abs=0.01)
    assert (p > 0).double().mean().item() == pytest.approx(1 / 6, abs=0.01)
    torch.testing.assert_close(p @ p.T / 4_000, torch.eye(24, dtype=torch.float64), rtol=0, atol=0.1)
    assert torch.equal(p, learner_of("fastrp", {"encoder": {"dim": 4_000}}).encoder.weights[0])
    other = learner_of("fastrp", {"encoder": {"dim": 4_000}, "run": {"seed": 1}})
    assert not torch.equal(p, other.encoder.weights[0])


def test_settings_that_cannot_work_are_refused():
    for name, over, words in (
        ("fastrp", {"encoder": {"layers": 2}}, r"encoder\.layers to 1"),
        ("fastrp", {"encoder": {"powers": []}}, r"encoder\.powers to the weights"),
        ("fastrp", {"encoder": {"powers": [0, 0]}}, "all 0"),
        ("fastrp", {"encoder": {"smoothing": 1}}, "two ways of exporting"),
        ("features", {"encoder": {"layers": 1}}, r"encoder\.layers to 0"),
        ("nml", {"encoder": {"powers": [1]}, "sampling": {"batch_size": 30}}, "whole graph"),
    ):
        with pytest.raises(InvalidInput, match=words):
            small_spec(name, over)
    assert preset_spec("fastrp", "cora").encoder.powers == (0, 1, 1)
