"""Graphs without features get structural ones, from memory and from files alike."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data import structural
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.held_out import hold_out
from trainer.data.importing.graph import import_tables
from trainer.data.sources import npz
from trainer.errors import InvalidInput
from trainer.evaluation.links import link_auc
from trainer.planning.shape import shape_of_data
from trainer.spec.data import DataSpec, FilesSpec

EDGES = np.array([[0, 1, 2, 3, 4, 5, 0], [1, 2, 0, 4, 5, 3, 3]])


def test_features_equal_powers_of_the_dense_walk_matrix():
    graph = Graph.from_edges(EDGES)
    dense = np.eye(6)
    dense[EDGES[0], EDGES[1]] = dense[EDGES[1], EDGES[0]] = 1
    degree = dense.sum(1, keepdims=True)
    start = np.random.default_rng(0).standard_normal((6, structural.WIDTH), dtype=np.float32) / np.sqrt(degree)
    walked = np.linalg.matrix_power(dense / degree, structural.STEPS) @ start
    expected = walked / np.linalg.norm(walked, axis=1, keepdims=True)
    np.testing.assert_allclose(graph.x.numpy(), expected, atol=1e-5)
    assert structural.NOTE in graph.notes


def test_nodes_of_the_same_part_are_alike_and_isolated_ones_are_finite():
    parts = np.array([[a + at, b + at] for at in (0, 20) for a in range(20) for b in range(a)]).T
    x = Graph.from_edges(parts, num_nodes=41).x.numpy()
    alike = x @ x.T
    assert alike[:20, :20].min() > 0.9
    assert abs(alike[:20, 20:40]).max() < 0.5
    assert np.isfinite(x).all()


@pytest.fixture(params=["csv", "npz"])
def files(request, tmp_path):
    if request.param == "npz":
        np.savez(tmp_path / "graph.npz", edge_index=EDGES, ids=np.arange(6))
        return FilesSpec(npz=str(tmp_path / "graph.npz"))
    (tmp_path / "nodes.csv").write_text("id\n" + "".join(f"{node}\n" for node in range(6)))
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in EDGES.T))
    return FilesSpec(nodes=str(tmp_path / "nodes.csv"), edges=str(tmp_path / "edges.csv"))


def test_files_without_features_are_the_same_graph(files):
    data = DataSpec(name="files", files=files)
    assert load(data).fingerprint() == Graph.from_edges(EDGES).fingerprint()
    shape = shape_of_data(data)
    assert (shape.nodes, shape.features) == (6, structural.WIDTH)


def test_an_import_says_that_it_needs_features(tmp_path):
    (tmp_path / "nodes.csv").write_text("id\n1\n2\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    spec = FilesSpec(nodes=str(tmp_path / "nodes.csv"), edges=str(tmp_path / "edges.csv"))
    with pytest.raises(InvalidInput, match=r"nodes\.csv, row 1: no feature columns"):
        import_tables(spec, tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize("through_a_file", [False, True])
def test_features_do_not_tell_which_edges_were_held_out(through_a_file, tmp_path):
    graph = Graph.from_edges(np.random.default_rng(0).integers(600, size=(2, 1_500)), num_nodes=600)
    if through_a_file:
        npz.save(graph, tmp_path / "graph.npz")
        data = DataSpec(name="files", files=FilesSpec(npz=str(tmp_path / "graph.npz")), held_out_edges=0.2)
        left = load(data)
    else:
        left = hold_out(graph, 0.2, seed=0)
    expected = Graph.from_edges(left.edge_index, num_nodes=600).x
    np.testing.assert_array_equal(left.x, expected)
    assert link_auc(left.x, left, seed=0)["auc"] == pytest.approx(0.5, abs=0.08)  # 0.98 with those of the whole graph
    assert link_auc(graph.x, left, seed=0)["auc"] > 0.9
