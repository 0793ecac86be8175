"""GRACE+: its similarity against dense matrices, how much half precision costs, and the formula by hand."""

from __future__ import annotations

import pytest
import torch

import trainer
from tests.trainer.methods.contrast import (
    CACHED,
    SAMPLED,
    assert_close,
    assert_resumes_to_the_bit,
    gradients,
    learner_of,
    only_step,
    planted,
    projected,
)
from trainer.config import parse_spec
from trainer.errors import InvalidInput
from trainer.loss import similar_nodes
from trainer.loss.node_similarity import NodeSimilarity
from trainer.presets import merged, preset_document, preset_spec

PLUS = {"name": "grace-plus", "temperature": 0.4, "projection": 10, "tau_positive": 0.05, "tau_negative": 0.02}
BETA = 0.6


@pytest.fixture(scope="module")
def graph():
    return planted()


def dense_similarity(graph, beta):
    """S in float64, by matrices."""
    n = graph.num_nodes
    a = torch.eye(n, dtype=torch.float64)
    source, target = graph.edge_index
    a[target, source] = 1
    scale = a.sum(1).rsqrt()
    a = scale[:, None] * a * scale
    q = eye = torch.eye(n, dtype=torch.float64)
    for _ in range(20):
        q = 0.9 * a @ q + 0.1 * eye
    x = graph.x.to_dense().double()
    x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
    c = x @ x.T
    return (1 - beta) * q + beta * q.mean() / c.mean() * c


def dense_weights(s, tau_positive, tau_negative):
    p = (s / tau_positive).exp() - 1
    p = torch.where(torch.eye(len(s), dtype=bool), p.clamp_min(1), p)
    n = (-s / tau_negative).exp().fill_diagonal_(0)
    return p / p.sum(1, keepdim=True), n / n.sum(1, keepdim=True) * (len(s) - 1)


def dense_plus_loss(u, v, tau, p, n):
    total = u.new_zeros(())
    off = 1 - torch.eye(len(u), dtype=u.dtype)
    for a, b in ((u, v), (v, u)):
        inter, intra = a @ b.T, a @ a.T
        num = (((p * off) * intra).sum(1) / tau).exp() + ((p * inter).sum(1) / tau).exp()
        den = (inter.diagonal() / tau).exp() + ((n * off) * ((inter / tau).exp() + (intra / tau).exp())).sum(1)
        total = total - (num / den).log().mean() / 2
    return total


@pytest.mark.parametrize("beta", [0.0, 0.6, 1.0])
def test_the_table_is_the_similarity_to_half_precision(monkeypatch, graph, beta):
    monkeypatch.setattr(similar_nodes, "BLOCK", 1_700)  # ragged blocks
    mine = NodeSimilarity(graph, beta=beta, tau_positive=1, tau_negative=1)
    s = dense_similarity(graph, beta)
    assert mine.table.dtype == torch.float16
    error = (mine.table.double() / mine.unit - s).abs()
    assert (error <= 2**-11 * s.abs() + 1e-6 * s.max()).all()


@pytest.mark.parametrize("tau_positive, tau_negative", [(0.1, 0.1), (10, 0.001), (0.001, 0.1)])
def test_weights_are_right_to_within_what_half_precision_costs(graph, tau_positive, tau_negative):
    s = dense_similarity(graph, BETA)
    similarity = NodeSimilarity(graph, beta=BETA, tau_positive=tau_positive, tau_negative=tau_negative)
    among = similarity.among(torch.arange(200), torch.float64)
    everyone = slice(0, 200)
    p, n = dense_weights(s, tau_positive, tau_negative)
    for mine, exact, tau in (
        (among.positive.tile(everyone, everyone), p, tau_positive),
        (among.negative.tile(everyone, everyone).clone().fill_diagonal_(0), n, tau_negative),
    ):
        torch.testing.assert_close(mine.sum(1), exact.sum(1))
        allowed = 4 * (2**-11 * float(s.max()) / tau + 2**-11)  # of an exponent, and of its normaliser
        error = ((mine - exact).abs().sum(1) / exact.sum(1)).max()
        assert error < min(allowed, 0.5), (float(error), allowed)


def test_loss_and_gradients_equal_the_formula(graph):
    learner = learner_of(graph, PLUS)
    loss = learner.spec.method.loss(learner, only_step(learner, 1))
    loss.total.backward()
    mine = gradients(learner)

    similarity = learner.parts["similarity"]
    s = similarity.table.double() / similarity.unit  # what rounding it costs is tested above
    p, n = dense_weights(s, 0.05, 0.02)
    u, v = (projected(learner, part) for part in only_step(learner, 1).embeddings)
    expected = dense_plus_loss(u, v, 0.4, p, n)
    expected.backward()
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-10)
    assert_close(mine, gradients(learner))

    with torch.no_grad():  # and the exact similarity changes the loss by less than a thousandth
        exact = dense_plus_loss(u, v, 0.4, *dense_weights(dense_similarity(graph, BETA), 0.05, 0.02))
    assert loss.total.item() == pytest.approx(exact.item(), abs=1e-3)


def test_in_a_batch_weights_are_normalised_over_its_nodes(graph):
    similarity = NodeSimilarity(graph, beta=BETA, tau_positive=0.05, tau_negative=0.02)
    nodes = torch.randperm(200)[:50]
    among = similarity.among(nodes, torch.float64)
    s = (similarity.table.double() / similarity.unit)[nodes][:, nodes]
    p, n = dense_weights(s, 0.05, 0.02)
    rows, columns = slice(10, 40), slice(20, 50)
    torch.testing.assert_close(among.positive.tile(rows, columns), p[rows, columns])
    mine, off = among.negative.tile(rows, columns), torch.eye(50)[rows, columns] == 0
    torch.testing.assert_close(mine[off], n[rows, columns][off])
    torch.testing.assert_close(among.own, p.diagonal())


@pytest.mark.parametrize("sampling", [{}, CACHED, SAMPLED], ids=["whole", "cached", "batch"])
def test_it_resumes_to_the_bit_in_every_scope(tmp_path, graph, sampling):
    assert_resumes_to_the_bit(tmp_path, graph, PLUS, 3, sampling=sampling)


@pytest.mark.parametrize("setting, value", [("tau_positive", 0), ("tau_negative", 101), ("feature_weight", 1.1)])
def test_settings_outside_their_bounds_are_refused_by_name(graph, setting, value):
    with pytest.raises(InvalidInput, match=rf"method\.{setting}"):
        learner_of(graph, {**PLUS, setting: value})


def test_presets_are_the_published_settings():
    assert preset_spec("grace-plus", "citeseer").method.tau_negative == 0.001
    assert preset_spec("grace-plus", "photo").augment.adaptive == "degree"
    assert preset_spec("grace-plus", "wikics").optimiser.epochs == 800


@pytest.mark.slow
def test_on_digits_it_beats_the_raw_features(tmp_path):
    found = {}
    for name in ("grace-plus", "features"):
        quick = {"run": {"track": False, "diagnose_every": 0}, "evaluation": {"figures": False, "cluster_seeds": 1}}
        spec = parse_spec(merged(preset_document(name, "digits"), quick))
        found[name] = trainer.fit(spec, tmp_path / name).metrics["eval"]["probe"]["test"]
    assert found["grace-plus"] > found["features"], found
