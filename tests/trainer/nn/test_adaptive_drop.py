"""Drop rates by centrality: against the formula, in the views, and in sampled batches."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.methods.contrast import CACHED, SAMPLED, gradients, learner_of, only_step, planted, train
from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.nn.adaptive_drop import MOST, centrality, drop_rates
from trainer.nn.views import draw_augmentations
from trainer.spec.encoder import AugmentSpec

KINDS = ["degree", "pagerank", "eigenvector"]


@pytest.fixture(scope="module")
def graph():
    return planted()


def dense(graph):
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    source, target = graph.edge_index
    adjacency[target, source] = 1
    return adjacency


def test_centralities_are_the_fixed_points_they_stand_for(graph):
    a = dense(graph)
    assert torch.equal(centrality(graph, "degree"), a.sum(1).clamp_min(1e-8))
    rank = centrality(graph, "pagerank")
    torch.testing.assert_close(rank, 0.15 + 0.85 * a @ (rank / a.sum(0).clamp_min(1)), rtol=1e-5, atol=1e-6)
    values, vectors = torch.linalg.eigh(a)
    torch.testing.assert_close(centrality(graph, "eigenvector"), vectors[:, -1].abs().clamp_min(1e-8), rtol=1e-4,
                               atol=1e-6)  # fmt: skip
    assert values[-1] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_rates_equal_the_formula_edge_by_edge_and_column_by_column(graph, kind):
    spec = AugmentSpec(edge_drop=(0.3, 0.5), feature_mask=(0.1, 0.4), adaptive=kind)
    psi, (_, target) = centrality(graph, kind), graph.edge_index
    q = psi[target].log()
    edge = (q.max() - q) / (q.max() - q.mean())
    score = (graph.x.to_dense().double().T.ne(0).double() @ psi).clamp_min(1e-12).log()
    column = (score.max() - score) / (score.max() - score.mean())
    for rates, drop, mask in zip(drop_rates(spec, graph), (0.3, 0.5), (0.1, 0.4), strict=True):
        torch.testing.assert_close(rates.edge[target], (drop * edge / edge.mean()).clamp_max(MOST))
        torch.testing.assert_close(rates.column, (mask * column / column.mean()).clamp_max(MOST))


def test_dense_features_count_by_their_size_and_columns_of_zeros_make_no_nan():
    x = torch.tensor([[1.0, 4.0, 0.0], [2.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
    graph = Graph.from_edges([[0, 1, 1, 2], [1, 0, 2, 1]], x)
    rates = drop_rates(AugmentSpec(adaptive="degree"), graph)[0]
    assert torch.isfinite(rates.column).all()
    assert rates.column.argmax() == 2
    sizes = drop_rates(AugmentSpec(adaptive="degree", feature_mask=(0.1, 0.1)), graph)[0].column
    assert sizes[0] == pytest.approx(0)  # Σ ψ|x|: 8 in the first, 7 in the second
    assert sizes[1] > 0


def test_a_regular_graph_drops_all_edges_alike():
    ring = torch.arange(12)
    edges = torch.stack([torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])])
    rates = drop_rates(
        AugmentSpec(edge_drop=(0.3, 0.3), adaptive="eigenvector"), Graph.from_edges(edges, torch.eye(12))
    )
    torch.testing.assert_close(rates[0].edge, torch.full((12,), 0.3, dtype=torch.float64))


def test_views_drop_each_edge_as_often_as_its_rate_says(graph):
    spec = AugmentSpec(edge_drop=(0.4, 0.2), feature_mask=(0.3, 0.3), adaptive="degree")
    rates = drop_rates(spec, graph)
    source, target = graph.edge_index
    kept, seen = torch.zeros(graph.num_edges), torch.zeros(graph.num_features)
    draws = 400
    for epoch in range(draws):
        first, _ = draw_augmentations(spec, graph.num_features, seed=0, epoch=epoch, rates=rates)
        kept += first.keeps(torch.arange(graph.num_edges), source, target, graph.num_nodes)
        seen += first.columns
    tolerance = 5 * 0.5 / draws**0.5
    assert (1 - kept / draws - rates[0].edge[target]).abs().max() < tolerance
    assert (1 - seen / draws - rates[0].column).abs().max() < tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_cached_batches_see_the_same_views_as_the_whole_graph(graph, kind):
    found = []
    for sampling in ({}, CACHED):
        learner = learner_of(graph, {"name": "grace"}, sampling=sampling, augment={"adaptive": kind})
        step = only_step(learner, 1)
        step.views.backward(learner.spec.method.loss(learner, step).total)
        found.append(gradients(learner))
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-8, atol=1e-10)


def test_sampled_batches_train_with_it(graph):
    adaptive = {"adaptive": "pagerank"}
    plain, weighted = (
        train(learner_of(graph, {"name": "grace"}, sampling=SAMPLED, augment=augment), range(1, 3))
        for augment in ({}, adaptive)
    )
    assert plain != weighted
    assert weighted == train(learner_of(graph, {"name": "grace"}, sampling=SAMPLED, augment=adaptive), range(1, 3))


def test_directions_cannot_be_dropped_together_and_by_target(graph):
    with pytest.raises(InvalidInput, match="undirected"):
        learner_of(graph, {"name": "grace"}, augment={"adaptive": "degree", "undirected": True})
