"""PHASES: exact tables of similar nodes, masks that grow, and the formula by hand."""

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
from trainer.loss import similar_nodes
from trainer.loss.similar_nodes import most_similar
from trainer.methods import phases
from trainer.presets import merged, preset_document

PHASES = {"name": "phases", "temperature": 0.4, "projection": 10, "masked": 20}


@pytest.fixture(scope="module")
def graph():
    return planted()


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_the_table_has_the_exact_most_similar_nodes_in_order(monkeypatch, layout):
    monkeypatch.setattr(similar_nodes, "BLOCK", 700)  # ragged blocks
    x = torch.randn(97, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).relu()
    x[5] = 0
    table = most_similar(x.to_sparse_csr() if layout == "sparse" else x, 9).long()
    unit = x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
    cosine = (unit @ unit.T).fill_diagonal_(-1)
    best = cosine.sort(dim=1, descending=True).values[:, :9]
    torch.testing.assert_close(cosine.gather(1, table), best)  # ties may stand in any order
    assert not (table == torch.arange(97)[:, None]).any()
    assert all(len(set(row)) == 9 for row in table.tolist())


@pytest.mark.parametrize("epoch", [1, 3, 6])
def test_loss_and_gradients_equal_the_formula_at_every_stage(graph, epoch):
    learner = learner_of(graph, PHASES)
    method = learner.spec.method
    loss = method.loss(learner, only_step(learner, epoch))
    loss.total.backward()
    mine = gradients(learner)

    u, v = (projected(learner, part) for part in only_step(learner, epoch).embeddings)
    length = method.length(epoch, 6, len(u))
    weights = torch.ones(len(u), len(u), dtype=torch.float64)
    for row, others in enumerate(most_similar(graph.x, 20)[:, :length].long()):
        weights[row, others] = 0
    expected = dense_loss(u, v, 0.4, weights)
    expected.backward()
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-10)
    assert_close(mine, gradients(learner))
    assert (epoch == 1) == (length == 0)


def test_the_mask_grows_from_nothing_to_all_of_it(graph):
    method = learner_of(graph, PHASES).spec.method
    lengths = [method.length(epoch, 100, 200) for epoch in range(1, 101)]
    assert lengths == sorted(lengths)
    assert set(lengths[:10]) == {0}
    assert set(lengths[60:]) == {20}
    share = learner_of(graph, {**PHASES, "masked_share": 0.25}).spec.method
    assert share.length(6, 6, 200) == 50


def test_a_batch_leaves_out_the_similar_nodes_that_are_in_it(graph):
    learner = learner_of(graph, PHASES, sampling=SAMPLED)
    table = most_similar(graph.x, 20).long()
    nodes = torch.randperm(200)[:60]
    mask = learner.parts["similar"].mask(nodes, 7).tile(slice(10, 50), slice(0, 60))
    expected = torch.stack([1.0 - torch.isin(nodes, table[node, :7]).float() for node in nodes[10:50]])
    assert torch.equal(mask, expected)


def test_without_a_mask_it_is_grace(graph):
    one, two = (
        train(learner_of(graph, {"name": name, "projection": 10, **extra}), range(1, 4))
        for name, extra in (("grace", {}), ("phases", {"masked": 0}))
    )
    assert one == two


@pytest.mark.parametrize("source", ["input", "embedding"])
@pytest.mark.parametrize("sampling", [{}, CACHED, SAMPLED], ids=["whole", "cached", "batch"])
def test_it_resumes_to_the_bit_in_every_scope(tmp_path, graph, source, sampling):
    method = {**PHASES, "source": source, "refresh_every": 2}
    assert_resumes_to_the_bit(tmp_path, graph, method, 3, sampling=sampling)


def test_impossible_settings_are_refused_before_the_start(graph):
    with pytest.raises(InvalidInput, match=r"before method\.start"):
        learner_of(graph, {**PHASES, "start": 0.5, "full": 0.4})
    with pytest.raises(InvalidInput, match="masked_share"):
        learner_of(graph, {**PHASES, "masked_share": 0.6})


def test_half_of_the_nodes_always_stay(graph):
    learner = learner_of(graph, {**PHASES, "masked": 10_000})
    assert learner.parts["similar"].table.shape == (200, 100)
    assert learner.spec.method.length(6, 6, 200) == 100


def test_graphs_of_which_all_pairs_cannot_be_compared_are_refused(monkeypatch, graph):
    monkeypatch.setattr(phases, "MOST_NODES", 199)
    with pytest.raises(InvalidInput, match="such as grace"):
        learner_of(graph, PHASES)


@pytest.mark.slow
def test_on_digits_it_beats_the_raw_features(tmp_path):
    found = {}
    for name in ("phases", "features"):
        quick = {"run": {"track": False, "diagnose_every": 0}, "evaluation": {"figures": False, "cluster_seeds": 1}}
        spec = parse_spec(merged(preset_document(name, "digits"), quick))
        found[name] = trainer.fit(spec, tmp_path / name).metrics["eval"]["probe"]["test"]
    assert found["phases"] > found["features"], found
