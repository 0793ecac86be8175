"""ProGCL: the mixture, the frozen weights, and the formula by hand."""

from __future__ import annotations

import pytest
import torch

import trainer
from tests.trainer.methods.contrast import (
    CACHED,
    SAMPLED,
    assert_close,
    assert_resumes_to_the_bit,
    dense_loss,
    gradients,
    learner_of,
    only_step,
    planted,
    projected,
    train,
)
from trainer.config import parse_spec
from trainer.errors import InvalidInput
from trainer.loss.beta_mixture import fit_beta_mixture
from trainer.presets import merged, preset_document, preset_spec

PROGCL = {"name": "progcl", "temperature": 0.4, "projection": 10, "start_epoch": 2, "fit_columns": 30}


@pytest.fixture(scope="module")
def graph():
    return planted()


def test_the_mixture_recovers_what_it_was_drawn_from():
    torch.manual_seed(0)
    true = torch.distributions.Beta(20.0, 20.0).sample((18_000,))
    false = torch.distributions.Beta(40.0, 5.0).sample((2_000,))
    mixture = fit_beta_mixture(torch.cat([true, false]), false_share=0.05, steps=50)
    assert mixture.mean.tolist() == pytest.approx([1 / 2, 40 / 45], rel=0.05)
    assert mixture.share.tolist() == pytest.approx([0.9, 0.1], rel=0.05)
    posterior = mixture.true_negative(torch.linspace(0.45, 0.95, 50))
    assert (posterior.diff() <= 0).all()  # the more alike, the less likely a true negative
    assert posterior[0] > 0.95
    assert posterior[-1] < 0.05


def test_constant_similarities_do_not_break_the_mixture():
    for value in (0.0, 0.5, 1.0):
        mixture = fit_beta_mixture(torch.full((100,), value), false_share=0.05)
        assert torch.isfinite(mixture.true_negative(torch.linspace(0, 1, 11))).all()


def test_loss_and_gradients_equal_the_formula(graph):
    learner = learner_of(graph, PROGCL)
    method = learner.spec.method
    frozen = [projected(learner, part).detach() for part in only_step(learner, 2).embeddings]
    columns = torch.randperm(200, generator=learner.generator("mixture", 2))[:30]
    loss = method.loss(learner, only_step(learner, 3))
    loss.total.backward()
    mine = gradients(learner)

    x = (frozen[0] @ frozen[1].T + 1) / 2
    sample = torch.stack([x[i, j] for i in range(200) for j in columns.tolist() if i != j])
    mixture = fit_beta_mixture(sample, false_share=0.05)
    b = mixture.true_negative(x.flatten()).view(200, 200) * x
    b.fill_diagonal_(0)
    weights = b / (b.sum(1, keepdim=True) / 199)
    u, v = (projected(learner, part) for part in only_step(learner, 3).embeddings)
    expected = dense_loss(u, v, 0.4, weights)
    expected.backward()
    # 4,096 points: what is interpolated between them is off by a few 1e-4 of a weight where P_t is steepest
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-5)
    assert_close(mine, gradients(learner), 1e-5)

    held = learner.parts["negatives"].weights(torch.arange(200))  # the rest is exact: the loss with these very weights
    table = held.tile(slice(0, 200), slice(0, 200)).clone()
    u, v = (projected(learner, part) for part in only_step(learner, 3).embeddings)
    exact = dense_loss(u, v, 0.4, table)
    exact.backward()
    assert loss.total.item() == pytest.approx(exact.item(), abs=1e-10)
    assert_close(mine, gradients(learner))
    assert (table - weights).fill_diagonal_(0).abs().max() < 1e-3


def test_weights_stay_as_they_were_at_their_epoch_unless_asked(graph):
    for refit, moves in ((None, False), (1, True)):
        learner = learner_of(graph, {**PROGCL, "refit_every": refit})
        train(learner, range(1, 3))
        before = learner.parts["negatives"].curve.clone()
        train(learner, range(3, 5))
        assert torch.equal(before, learner.parts["negatives"].curve) != moves


def test_before_its_epoch_it_is_grace(graph):
    grace = train(learner_of(graph, {"name": "grace", "temperature": 0.4, "projection": 10}), range(1, 4))
    mine = train(learner_of(graph, PROGCL), range(1, 4))
    assert mine[0] == grace[0]
    assert mine[1] != grace[1]


def test_with_constant_likelihoods_it_is_grace(graph):
    grace = learner_of(graph, {"name": "grace", "temperature": 0.4, "projection": 10})
    mine = learner_of(graph, {**PROGCL, "start_epoch": 5})
    mine.parts["negatives"].curve.fill_(1)
    mine.parts["negatives"].fitted.fill_(True)
    assert train(mine, range(1, 4)) == pytest.approx(train(grace, range(1, 4)), rel=1e-12)


def test_weights_of_false_and_true_negatives_are_reported(graph):
    learner = learner_of(graph, PROGCL)
    assert learner.diagnose(only_step(learner, 1)) == {}
    report = learner.diagnose(only_step(learner, 2))
    weights = learner.parts["negatives"].weights(torch.arange(200)).tile(slice(0, 200), slice(0, 200)).clone()
    weights.fill_diagonal_(0)
    same = (graph.y[:, None] == graph.y).double().fill_diagonal_(0)
    assert report["weight_fn"] == pytest.approx(((weights * same).sum() / same.sum()).item())
    assert report["weight_self"] == 1


@pytest.mark.parametrize("sampling", [{}, CACHED, SAMPLED], ids=["whole", "cached", "batch"])
@pytest.mark.parametrize("stop", [1, 3])
def test_it_resumes_to_the_bit_before_and_after_the_fit_in_every_scope(tmp_path, graph, sampling, stop):
    assert_resumes_to_the_bit(tmp_path, graph, {**PROGCL, "refit_every": 3}, stop, sampling=sampling)


def test_a_start_after_the_end_is_refused(graph):
    with pytest.raises(InvalidInput, match="would be grace"):
        learner_of(graph, {**PROGCL, "start_epoch": 6})


def test_presets_drop_adaptively():
    for dataset in ("cora", "photo", "digits"):
        spec = preset_spec("progcl", dataset)
        assert spec.augment.adaptive == "eigenvector"
        assert spec.method.start(spec.optimiser.epochs) < spec.optimiser.epochs


@pytest.mark.slow
def test_on_digits_it_beats_the_raw_features(tmp_path):
    found = {}
    for name in ("progcl", "features"):
        quick = {"run": {"track": False, "diagnose_every": 0}, "evaluation": {"figures": False, "cluster_seeds": 1}}
        spec = parse_spec(merged(preset_document(name, "digits"), quick))
        found[name] = trainer.fit(spec, tmp_path / name).metrics["eval"]["probe"]["test"]
    assert found["progcl"] > found["features"], found
