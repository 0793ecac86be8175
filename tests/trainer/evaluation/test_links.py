"""The AUC on held-out edges against scikit-learn, and the pairs it is compared with against sets of pairs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.held_out import hold_out
from trainer.evaluation import links
from trainer.evaluation.evaluate import evaluate
from trainer.evaluation.links import has_edge, link_auc, unlinked_pairs
from trainer.spec.data import DataSpec, SyntheticSpec
from trainer.spec.evaluation import EvaluationSpec


@pytest.fixture(scope="module")
def graph() -> Graph:
    spec = SyntheticSpec(nodes=500, classes=4, homophily=0.95, degree=12)
    return load(DataSpec(name="synthetic", synthetic=spec, held_out_edges=0.2))


def vectors(graph: Graph, *, seed: int = 0) -> np.ndarray:
    """Embeddings that know the communities, somewhat."""
    noise = np.random.default_rng(seed).normal(size=(graph.num_nodes, 16))
    return noise + 1.5 * np.eye(16)[graph.y.numpy()]


def cosine(z: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    return (unit[pairs[0]] * unit[pairs[1]]).sum(1)


def test_auc_is_scikit_learns_on_the_same_pairs(graph):
    z = vectors(graph)
    found = link_auc(z, graph, seed=4)
    held, others = graph.held_out.numpy(), unlinked_pairs(graph, graph.held_out.shape[1], seed=4)
    truth = np.repeat([1, 0], [held.shape[1], others.shape[1]])
    expected = roc_auc_score(truth, np.concatenate([cosine(z, held), cosine(z, others)]))
    assert found["auc"] == pytest.approx(expected, abs=1e-12)
    assert 0.6 < expected < 0.99
    assert found["pairs"] == found["available"] == found["negatives"] == held.shape[1]
    assert not found["sampled"]


def test_embeddings_that_know_nothing_are_at_chance_and_collapsed_ones_exactly(graph):
    z = np.random.default_rng(0).normal(size=(graph.num_nodes, 16))
    assert link_auc(z, graph, seed=0)["auc"] == pytest.approx(0.5, abs=0.06)
    assert link_auc(np.zeros_like(z), graph, seed=0)["auc"] == 0.5


def test_without_held_out_edges_there_is_no_figure(graph):
    assert link_auc(vectors(graph), replace(graph, held_out=None), seed=0) is None


def test_embeddings_of_other_nodes_are_refused(graph):
    with pytest.raises(ValueError, match="499 embeddings for 500 nodes"):
        link_auc(vectors(graph)[:-1], graph, seed=0)


@pytest.mark.parametrize("directed", [False, True])
def test_pairs_without_an_edge_are_neither_linked_nor_held_out_nor_selves(directed):
    random = np.random.default_rng(1)
    whole = Graph.from_edges(random.integers(40, size=(2, 500)), np.ones((40, 2)), directed=directed)
    graph = hold_out(whole, 0.3, seed=0)
    taken = {tuple(sorted(edge)) for edge in whole.edge_index.T.tolist()}
    found = [tuple(sorted(pair)) for pair in unlinked_pairs(graph, 10_000, seed=0).T.tolist()]
    assert len(found) == 10_000
    free = {pair for pair in itertools.combinations(range(40), 2) if pair not in taken}
    assert 50 < len(free) < 600
    assert set(found) == free  # and none of them is left out


def test_pairs_without_an_edge_depend_on_seed_and_graph_alone(graph):
    first = unlinked_pairs(graph, 300, seed=7)
    torch.manual_seed(3)
    np.testing.assert_array_equal(first, unlinked_pairs(graph, 300, seed=7))
    np.testing.assert_array_equal(first[:, :100], unlinked_pairs(graph, 100, seed=7))
    assert not np.array_equal(first, unlinked_pairs(graph, 300, seed=8))


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60))
def test_edges_are_found_where_the_matrix_has_them(nodes, edges):
    inside = [edge for edge in edges if max(edge) < nodes]
    graph = Graph.from_edges(np.array(inside, dtype=int).reshape(-1, 2).T, np.ones((nodes, 1)), directed=True)
    matrix = np.zeros((nodes, nodes), dtype=bool)
    matrix[tuple(graph.edge_index.numpy())] = True
    source, target = np.divmod(np.arange(nodes * nodes), nodes)
    np.testing.assert_array_equal(has_edge(graph, source, target).reshape(nodes, nodes), matrix)


def test_a_graph_without_a_pair_to_compare_with_says_so():
    complete = np.array(list(itertools.combinations(range(12), 2))).T
    graph = hold_out(Graph.from_edges(complete, np.ones((12, 2))), 0.3, seed=0)
    found = link_auc(np.random.default_rng(0).normal(size=(12, 3)), graph, seed=0)
    assert found["auc"] is None
    assert found["negatives"] == 0
    assert "too dense" in found["reason"]
    assert json.loads(json.dumps(found)) == found


def test_of_many_held_out_edges_a_seeded_sample_is_judged(graph):
    z, available = vectors(graph), graph.held_out.shape[1]
    found = link_auc(z, graph, seed=0, max_pairs=200)
    assert (found["pairs"], found["negatives"], found["available"], found["sampled"]) == (200, 200, available, True)
    assert found == link_auc(z, graph, seed=0, max_pairs=200)
    assert found["auc"] != link_auc(z, graph, seed=1, max_pairs=200)["auc"]
    assert found["auc"] == pytest.approx(link_auc(z, graph, seed=0)["auc"], abs=0.08)


def test_a_memory_map_read_in_small_blocks_gives_the_figure_of_the_array(tmp_path, graph, monkeypatch):
    z = vectors(graph)
    np.save(tmp_path / "z.npy", z)
    expected = link_auc(z, graph, seed=0)
    monkeypatch.setattr(links, "_BLOCK_BYTES", 8 * 16 * 7)
    assert link_auc(np.load(tmp_path / "z.npy", mmap_mode="r"), graph, seed=0) == expected


def test_the_evaluation_has_a_section_whose_pairs_do_not_follow_the_runs_seed(graph):
    spec, z = EvaluationSpec(probe_epochs=5, cluster_seeds=1), vectors(graph).astype(np.float32)
    given = {"y": graph.y, "public_split": None, "spec": spec}
    first, second = (evaluate(z, seed=seed, graph=graph, link_seed=9, **given) for seed in (0, 1))
    assert first["links"] == second["links"] == link_auc(z, graph, seed=9)
    protocol = first["protocol"]["links"]
    assert (protocol["seed"], protocol["score"], protocol["sampled"]) == (9, "cosine", False)
    assert protocol["used"] == protocol["available"] == graph.held_out.shape[1]
    without = evaluate(z, seed=0, graph=replace(graph, held_out=None), **given)
    assert without["links"] is without["protocol"]["links"] is None
    assert evaluate(z, seed=0, **given)["links"] is None
