"""New nodes get the vectors that the trainer's export gives on the graph with them in it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from trainer.data.features import rownorm, zscore
from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.export.layerwise import embed_layerwise
from trainer.inference import extended, new_nodes
from trainer.inference.features import Preparation, standardisation
from trainer.inference.new_nodes import embed_new_nodes
from trainer.nn.encoder import Encoder
from trainer.spec.encoder import EncoderSpec

N, F = 60, 12


@dataclass
class Whole:
    """A random graph as lists of directed edges, from which parts are cut."""

    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    x: np.ndarray

    def graph(self, keep: np.ndarray | None = None) -> Graph:
        """All of it, or the graph of the nodes to keep, renumbered."""
        if keep is None:
            keep = np.arange(len(self.x))
        number = np.full(len(self.x), -1)
        number[keep] = np.arange(len(keep))
        inside = (number[self.source] >= 0) & (number[self.target] >= 0)
        edges = np.stack([number[self.source[inside]], number[self.target[inside]]])
        weight = None if self.weight is None else self.weight[inside]
        return Graph.from_edges(edges, self.x[keep], weight=weight, directed=True)


def whole(*, directed: bool, weighted: bool, sparse: bool, seed: int = 0) -> Whole:
    random = np.random.default_rng(seed)
    pairs = np.unique(random.integers(0, N - 1, (150, 2)), axis=0)  # N - 1 stays isolated
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    flip = random.random(len(pairs)) < 0.5
    pairs[flip] = pairs[flip][:, ::-1]
    weight = random.uniform(0.1, 3, len(pairs)).astype(np.float32) if weighted else None
    if not directed:
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        weight = None if weight is None else np.concatenate([weight, weight])
    x = random.standard_normal((N, F)).astype(np.float32)
    if sparse:
        x[random.random((N, F)) < 0.85] = 0
    return Whole(pairs[:, 0], pairs[:, 1], weight, x)


def encoder(layers: int = 2, hidden: int = 16, dim: int = 8, features: int = F, dtype=torch.float32) -> Encoder:
    made = Encoder(
        features, EncoderSpec(hidden=hidden, dim=dim, layers=layers), generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        for bias in made.biases:
            bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(2))
    return made.to(dtype)


def exported(model: Encoder, graph: Graph, tmp_path) -> np.ndarray:
    embed_layerwise(model, graph, tmp_path / "vectors.npy", model_digest="m", graph_digest="g")
    return np.load(tmp_path / "vectors.npy")


def raw(graph: Graph) -> Preparation:
    return Preparation("raw", graph.num_features, graph.x.layout == torch.sparse_csr)


def request(data: Whole, nodes: np.ndarray, known: np.ndarray, *, replaces: bool) -> dict[str, np.ndarray]:
    """What a client would send for `nodes` of the whole, `known` being the rows of the rest (ascending)."""
    row = np.full(len(data.x), -1)
    row[known] = np.arange(len(known))
    new = {int(node): j for j, node in enumerate(nodes)}
    n = len(known)
    edges = []

    def other(node: int) -> int:
        return n + new[node] if node in new else row[node]

    for number, (source, target) in enumerate(zip(data.source.tolist(), data.target.tolist(), strict=True)):
        weight = 1.0 if data.weight is None else data.weight[number]
        if target in new:
            edges.append((new[target], other(source), weight, 1))
        elif source in new:
            edges.append((new[source], other(target), weight, 2))
    node, to, weights, direction = (list(column) for column in zip(*edges, strict=True)) if edges else ([], [], [], [])
    return {
        "features": data.x[nodes],
        "edge_node": np.array(node, np.int64), "edge_other": np.array(to, np.int64),
        "edge_weight": np.array(weights, np.float32), "edge_direction": np.array(direction, np.int8),
        "replaces": row[nodes] if replaces else np.full(len(nodes), -1),
    }  # fmt: skip


CASES = list(itertools.product([False, True], repeat=3))
names = ["-".join(w for w, on in zip(("directed", "weighted", "sparse"), case, strict=True) if on) or "plain"
         for case in CASES]  # fmt: skip


@pytest.mark.parametrize("layers, hidden", [(2, 16), (3, 5)])
@pytest.mark.parametrize("directed, weighted, sparse", CASES, ids=names)
def test_nodes_that_were_in_the_graph_get_their_exported_vectors(tmp_path, directed, weighted, sparse, layers, hidden):
    data = whole(directed=directed, weighted=weighted, sparse=sparse)
    model, graph = encoder(layers, hidden), data.graph()
    expected = exported(model, graph, tmp_path)
    nodes = np.array([17, 3, 41, N - 1])
    for chosen in (nodes, nodes[:1], np.arange(N)[::-1]):
        arrays = request(data, chosen, np.arange(N), replaces=True)
        found = embed_new_nodes(model, graph, raw(graph), len(chosen), arrays)
        assert np.abs(found - expected[chosen]).max() <= 1e-6 * np.abs(expected).max()  # here, in fact, the same bits


@pytest.mark.parametrize("layers, dtype", [(1, torch.float32), (2, torch.float32), (2, torch.float64)])
@pytest.mark.parametrize("directed, weighted, sparse", CASES, ids=names)
def test_nodes_that_were_left_out_get_the_vectors_of_the_whole_graph(
    tmp_path, directed, weighted, sparse, layers, dtype
):
    data = whole(directed=directed, weighted=weighted, sparse=sparse)
    model = encoder(layers, dtype=dtype)
    expected = exported(model, data.graph(), tmp_path)
    nodes = np.array([5, N - 1, 4, 30, 31])  # among them linked ones and an isolated one
    known = np.setdiff1d(np.arange(N), nodes)
    graph = data.graph(known)
    found = embed_new_nodes(model, graph, raw(graph), 5, request(data, nodes, known, replaces=False))
    assert found.dtype == np.float32
    assert np.abs(found - expected[nodes]).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [1, 7, 1_000_000])
def test_undirected_edges_among_new_and_known_nodes_by_parts_of_any_size(tmp_path, monkeypatch, weighted, parts):
    monkeypatch.setattr(extended, "_AT_ONCE", parts)
    if parts < 10:
        monkeypatch.setattr(new_nodes, "_BUFFER", 1_000)
    data = whole(directed=False, weighted=weighted, sparse=False)
    graph, model = data.graph(), encoder()
    random = np.random.default_rng(3)
    x = random.standard_normal((3, F)).astype(np.float32)
    pairs = np.array([[0, 7], [0, 9], [0, N + 1], [1, 9], [1, 10], [2, 7], [2, 2 + N]])  # the last is a self loop
    weight = random.uniform(1, 2, 7).astype(np.float32) if weighted else np.ones(7, np.float32)
    edges = np.concatenate([np.stack([data.source, data.target]), [pairs[:, 0] + N, pairs[:, 1]],
                            [pairs[:, 1], pairs[:, 0] + N]], axis=1)  # fmt: skip
    weights = np.concatenate([data.weight, weight, weight]) if data.weight is not None else None
    full = Graph.from_edges(edges, np.concatenate([data.x, x]), weight=weights, directed=True)
    arrays = {"features": x, "edge_node": pairs[:, 0], "edge_other": pairs[:, 1], "edge_weight": weight}
    found = embed_new_nodes(model, graph, raw(graph), 3, arrays)
    expected = exported(model, full, tmp_path)[N:]
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


def test_a_memory_mapped_graph_gives_the_same(tmp_path):
    data = whole(directed=True, weighted=True, sparse=True)
    graph, model = data.graph(), encoder()
    graph.save(tmp_path / "graph")
    arrays = request(data, np.array([3, 17]), np.arange(N), replaces=True)
    mapped = Graph.open(tmp_path / "graph")
    one, two = (embed_new_nodes(model, each, raw(each), 2, arrays) for each in (graph, mapped))
    assert one.tobytes() == two.tobytes()


def test_duplicates_are_merged_as_in_any_graph(tmp_path):
    data = whole(directed=False, weighted=True, sparse=False)
    graph, model = data.graph(), encoder()
    x = np.ones((1, F), np.float32)
    twice = {"features": x, "edge_node": np.zeros(2, np.int64), "edge_other": np.array([4, 4]),
             "edge_weight": np.array([1, 0.5], np.float32)}  # fmt: skip
    once = {"features": x, "edge_node": np.zeros(1, np.int64), "edge_other": np.array([4]),
            "edge_weight": np.array([1.5], np.float32)}  # fmt: skip
    found = [embed_new_nodes(model, graph, raw(graph), 1, arrays) for arrays in (twice, once)]
    assert found[0].tobytes() == found[1].tobytes()
    plain = whole(directed=False, weighted=False, sparse=False).graph()
    mutual = {"features": np.ones((2, F), np.float32), "edge_node": np.array([0, 1]),
              "edge_other": np.array([N + 1, N])}  # fmt: skip
    single = mutual | {"edge_node": np.array([0]), "edge_other": np.array([N + 1])}
    found = [embed_new_nodes(model, plain, raw(plain), 2, arrays) for arrays in (mutual, single)]
    assert found[0].tobytes() == found[1].tobytes()
    with pytest.raises(InvalidInput, match="edge 0: both of its new nodes name it"):
        embed_new_nodes(model, graph, raw(graph), 2, mutual)


def test_an_edge_that_names_a_replaced_node_means_the_new_one():
    data = whole(directed=False, weighted=False, sparse=False)
    graph, model = data.graph(), encoder()
    base = {"features": np.ones((2, F), np.float32), "edge_node": np.array([0, 1]), "replaces": np.array([8, -1])}
    found = [
        embed_new_nodes(model, graph, raw(graph), 2, base | {"edge_other": np.array([20, other])})
        for other in (8, N)  # by the row it stands for, or by its number among the new
    ]
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("kind, prepare", [("rownorm", rownorm), ("zscore", zscore)])
@pytest.mark.parametrize("compressed", [False, True])
def test_features_are_prepared_with_the_statistics_of_the_stored_graph(tmp_path, kind, prepare, compressed):
    data = whole(directed=False, weighted=False, sparse=True)
    data.x = np.abs(data.x)
    data.x[:, 3] = 2  # a constant column
    unprepared = data.graph()
    x = prepare(unprepared.x)
    graph = Graph.from_edges(unprepared.edge_index, x.to_dense(), directed=True)
    mean = standardisation(unprepared.x) if kind == "zscore" else ()
    preparation = Preparation(kind, F, graph.x.layout == torch.sparse_csr, *mean)
    nodes = np.array([2, 11])
    arrays = request(data, nodes, np.arange(N), replaces=True)
    if compressed:
        dense = arrays.pop("features")
        row, column = dense.nonzero()
        arrays |= {"indptr": np.searchsorted(row, np.arange(3)), "indices": column, "values": dense[row, column]}
    model = encoder()
    found = embed_new_nodes(model, graph, preparation, 2, arrays)
    expected = exported(model, graph, tmp_path)
    assert np.abs(found - expected[nodes]).max() <= 1e-6 * np.abs(expected).max()


def test_a_hub_is_read_by_parts_and_more_than_the_bound_is_refused(monkeypatch):
    hub = np.arange(1, 5_000)
    graph = Graph.from_edges([hub, np.zeros_like(hub)], np.ones((5_000, F), np.float32), directed=True)
    arrays = {"features": np.ones((1, F), np.float32), "edge_node": np.array([0]), "edge_other": np.array([0])}
    assert embed_new_nodes(encoder(), graph, raw(graph), 1, arrays).shape == (1, 8)
    monkeypatch.setattr(extended, "MOST_ENTRIES", 4_000)
    with pytest.raises(InvalidInput, match=r"more than 4,000 edges .* fewer nodes"):
        embed_new_nodes(encoder(), graph, raw(graph), 1, arrays)
    monkeypatch.undo()
    monkeypatch.setattr(new_nodes, "MOST_VALUES", 5)
    with pytest.raises(InvalidInput, match="fewer nodes at a time"):
        embed_new_nodes(encoder(), graph, raw(graph), 1, arrays)


ONE = {"features": np.ones((1, F), np.float32), "edge_node": np.array([0]), "edge_other": np.array([0])}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"features": np.ones((1, F + 1), np.float32)}, "13 features; the graph has 12"),
        ({"features": np.ones((2, F), np.float32)}, "a row of 12 to each"),
        ({"features": np.full((1, F), np.nan, np.float32)}, r"x\[0, 0\] is nan"),
        ({"edge_node": np.array([1])}, r"edge_node\[0\] is 1"),
        ({"edge_other": np.array([N + 1])}, r"edge_other\[0\] is 61"),
        ({"edge_other": np.array([-1])}, r"edge_other\[0\] is -1"),
        ({"edge_other": np.array([1, 2])}, "one value per edge"),
        ({"edge_other": np.array([0.5])}, "whole numbers"),
        ({"edge_direction": np.array([3], np.int8)}, r"edge_direction\[0\] is 3"),
        ({"edge_weight": np.array([2], np.float32)}, "has no weights"),
        ({"edge_weight": np.array([np.nan], np.float32)}, r"edge_weight\[0\] is nan"),
        ({"replaces": np.array([N])}, r"replaces\[0\] is 60"),
        ({"replaces": np.array([0, 0])}, "replaces has shape"),
    ],
)
def test_bad_requests_are_refused_by_position(changed, message):
    graph = whole(directed=False, weighted=False, sparse=False).graph()
    with pytest.raises(InvalidInput, match=message):
        embed_new_nodes(encoder(), graph, raw(graph), 1, ONE | changed)


@pytest.mark.parametrize(
    "indptr, indices, values, message",
    [
        ([0, 1], [F], [1.0], "node 0 has feature 12; the graph has 12"),
        ([0, 1], [-1], [1.0], "feature -1"),
        ([0, 2], [1], [1.0], "indptr"),
        ([1, 1], [1], [1.0], "indptr"),
        ([0, 1], [1], [1.0, 2.0], "one value per index"),
        ([0, 1], [1], [np.inf], "is inf"),
    ],
)
def test_bad_compressed_features_are_refused(indptr, indices, values, message):
    graph = whole(directed=False, weighted=False, sparse=False).graph()
    arrays = {"indptr": np.array(indptr), "indices": np.array(indices), "values": np.array(values, np.float32)}
    with pytest.raises(InvalidInput, match=message):
        embed_new_nodes(encoder(), graph, raw(graph), 1, arrays)


def test_complete_rows_among_compressed_ones_have_the_width_of_the_graph():
    """Compressed, a row that is too short looks like one that ends with zeros."""
    graph, model = whole(directed=False, weighted=False, sparse=False).graph(), encoder()
    arrays = {"indptr": np.array([0, 1, 4]), "indices": np.array([F - 1, 0, 1, 2]), "values": np.ones(4, np.float32)}
    found = embed_new_nodes(model, graph, raw(graph), 2, arrays)
    for widths in ([-1, -1], [-1, F]):
        again = embed_new_nodes(model, graph, raw(graph), 2, arrays | {"widths": np.array(widths)})
        assert again.tobytes() == found.tobytes()
    for widths, message in (
        ([-1, 3], "node 1 has 3 features; the graph has 12. Give all, in its order."),
        ([-1, F + 1], "node 1 has 13 features; the graph has 12"), ([0, F], "node 0 has 0 features"),
        ([-1], r"widths have shape \(1,\) for 2 nodes"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=message):
            embed_new_nodes(model, graph, raw(graph), 2, arrays | {"widths": np.array(widths)})


def test_features_that_overflow_are_refused():
    graph, model = whole(directed=False, weighted=False, sparse=False).graph(), encoder()
    with torch.no_grad():
        model.weights[0].fill_(1)
    with pytest.raises(InvalidInput, match="new node 0 is not finite"):
        embed_new_nodes(model, graph, raw(graph), 1, ONE | {"features": np.full((1, F), 3e38, np.float32)})


def test_replacing_a_node_twice_is_refused():
    graph = whole(directed=False, weighted=False, sparse=False).graph()
    arrays = {"features": np.ones((2, F), np.float32), "replaces": np.array([4, 4])}
    with pytest.raises(InvalidInput, match="node 4 is replaced twice"):
        embed_new_nodes(encoder(), graph, raw(graph), 2, arrays)
