"""Sums over in-edges do not depend on how few entries are looked at together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.data.graph import Graph
from trainer.export.scratch import Table
from trainer.export.sums import Source, adjacency, aggregate, closures, inverse_root_degrees, parts, sparse_times

N, WIDTH = 41, 5


def ragged_graph(*, weighted: bool, seed: int = 0) -> Graph:
    """A hub with in-edges from everywhere, nodes without any, the rest at random; features 10 % dense."""
    draws = np.random.default_rng(seed)
    source, target = draws.integers(0, N - 3, (2, 120))
    edges = np.stack([np.append(source, np.arange(N - 3)), np.append(target, np.full(N - 3, 7))])
    x = draws.random((N, 30)) * (draws.random((N, 30)) < 0.1)
    weight = draws.random(edges.shape[1]) + 0.1 if weighted else None
    return Graph.from_edges(edges, x, weight=weight, directed=True)


def dense_adjacency(graph: Graph) -> np.ndarray:
    matrix = np.zeros((N, N))
    source, target = graph.edge_index.numpy()
    matrix[target, source] = 1 if graph.weight is None else graph.weight.numpy()
    return matrix


def dense_propagation(graph: Graph) -> np.ndarray:
    matrix = dense_adjacency(graph) + np.eye(N)
    root = 1 / np.sqrt(matrix.sum(1))
    return root[:, None] * matrix * root


def table(width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((N, width))


@pytest.mark.parametrize("at_most", [1, 2, 7, 1000])
@pytest.mark.parametrize("nodes", [range(N), range(5, 12), [0], [2, 3, 7, 8, 30, 40], [38, 39, 40]], ids=str)
def test_parts_of_a_piece_make_up_its_rows(nodes, at_most):
    graph = ragged_graph(weighted=True)
    found = np.zeros((len(nodes), N))
    for part in parts(adjacency(graph), torch.tensor(list(nodes)), at_most):
        assert 0 < len(part.columns) == part.pointer[-1] <= at_most
        row = np.repeat(np.arange(part.first, part.last), part.pointer.diff().numpy())
        np.add.at(found, (row, part.columns.numpy()), part.values.numpy())
    assert np.array_equal(found, dense_adjacency(graph)[list(nodes)])


@pytest.mark.parametrize("weighted", [False, True])
def test_degrees_are_those_of_the_whole_graph(weighted):
    graph = ragged_graph(weighted=weighted)
    expected = (dense_adjacency(graph).sum(1) + 1) ** -0.5
    for at_most in (1, 10, 1000):
        assert np.allclose(inverse_root_degrees(graph, torch.float64, at_most), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("touch", [0, 1 << 20], ids=["gathered", "resident"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("nodes", [range(N), [1, 6, 7, 9, 40]], ids=["all", "some"])
def test_aggregation_equals_the_dense_product(nodes, weighted, touch):
    graph = ragged_graph(weighted=weighted)
    scale = inverse_root_degrees(graph, torch.float64, 1000)
    source = Source(Table(torch.from_numpy(table()), lambda: None), None, torch.empty(0, dtype=torch.float64), touch)
    assert (source.resident is not None) == bool(touch)
    expected = dense_propagation(graph)[list(nodes)] @ table()
    for at_most in (1, 3, 1000):
        found = aggregate(graph, scale, source, torch.tensor(list(nodes)), at_most)
        assert np.allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("touch", [0, 1 << 20], ids=["gathered", "resident"])
def test_a_table_of_some_nodes_is_read_by_node_number(touch):
    graph = ragged_graph(weighted=False)
    nodes = torch.tensor([1, 9, 20])
    held = closures(graph, range(1, 21), 1, 1000)[0]
    some = Table(torch.from_numpy(table()[held]), lambda: None)
    source = Source(some, held, torch.empty(0, dtype=torch.float64), touch)
    found = aggregate(graph, inverse_root_degrees(graph, torch.float64, 1000), source, nodes, 4)
    assert np.allclose(found, dense_propagation(graph)[nodes] @ table(), rtol=0, atol=1e-13)


def test_sparse_features_are_multiplied_without_becoming_dense():
    graph = ragged_graph(weighted=False)
    assert graph.x.layout == torch.sparse_csr
    weight = torch.from_numpy(np.random.default_rng(2).standard_normal((30, WIDTH)))
    expected = graph.x.to_dense().double() @ weight
    for nodes in (range(N), [0, 3, 40]):
        for at_most in (1, 5, 1000):
            found = sparse_times(graph, weight, torch.tensor(list(nodes)), at_most)
            assert torch.allclose(found, expected[list(nodes)], rtol=0, atol=1e-13)


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_closures_are_the_in_neighbours_of_so_many_hops(hops):
    graph = ragged_graph(weighted=False, seed=4)
    reach = dense_adjacency(graph) + np.eye(N)
    for at_most in (1, 1000):
        found = closures(graph, range(10, 13), hops, at_most)
        for distance, nodes in zip(range(hops, -1, -1), found, strict=True):
            expected = np.linalg.matrix_power(reach, distance)[10:13].sum(0).nonzero()[0]
            assert nodes.tolist() == expected.tolist()
