"""Graph: normal form against a naive reference, refusals, and what is on disk."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from trainer.data.graph import Graph
from trainer.errors import InvalidInput


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    n = draw(st.integers(2, 8))
    node = st.integers(0, n - 1)
    return n, draw(st.lists(st.tuples(node, node, st.integers(0, 5)), max_size=40))


def stored(graph: Graph) -> list[tuple[int, int]]:
    return [(s, t) for s, t in graph.edge_index.T.tolist()]


@settings(max_examples=120, deadline=None)
@given(edge_lists(), st.booleans())
def test_unweighted_edges_equal_a_set_of_pairs(case, directed):
    n, listed = case
    graph = Graph.from_edges(
        np.array([[s, t] for s, t, _ in listed], dtype=int).reshape(-1, 2).T, np.ones((n, 1)), directed=directed
    )
    expected = {(s, t) for s, t, _ in listed if s != t}
    if not directed:
        expected |= {(t, s) for s, t in expected}
    assert stored(graph) == sorted(expected, key=lambda edge: (edge[1], edge[0]))
    assert graph.indptr[0] == 0
    assert graph.indptr[-1] == graph.num_edges == len(expected)
    loops = sum(s == t for s, t, _ in listed)
    assert any("self loop" in note for note in graph.notes) == (loops > 0)
    ends = {node for edge in expected for node in edge}
    if expected:
        assert any(f"kept {n - len(ends)} isolated" in note for note in graph.notes) == (len(ends) < n)
    else:
        assert "no edges" in graph.notes[-1]


@settings(max_examples=120, deadline=None)
@given(edge_lists(), st.booleans())
def test_weights_of_duplicates_add_up(case, directed):
    n, listed = case
    graph = Graph.from_edges(
        np.array([[s, t] for s, t, _ in listed], dtype=int).reshape(-1, 2).T,
        np.ones((n, 1)),
        weight=[w for *_, w in listed],
        directed=directed,
    )
    one_way: dict[tuple[int, int], float] = {}
    for s, t, w in listed:
        if s != t:
            one_way[s, t] = one_way.get((s, t), 0) + w
    expected = dict(one_way)
    if not directed and any(one_way.get((t, s)) != w for (s, t), w in one_way.items()):
        expected = {}
        for (s, t), w in one_way.items():
            for pair in ((s, t), (t, s)):
                expected[pair] = expected.get(pair, 0) + w
    assert dict(zip(stored(graph), graph.weight.tolist(), strict=True)) == expected


def test_a_list_that_is_symmetric_already_keeps_its_weights():
    graph = Graph.from_edges([[0, 1], [1, 0]], np.ones((2, 1)), weight=[0.5, 0.5])
    assert graph.weight.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "x, layout",
    [
        (np.eye(5), torch.sparse_csr),
        (csr_matrix(np.eye(5)), torch.sparse_csr),
        (torch.eye(5).to_sparse_csr(), torch.sparse_csr),
        (csr_matrix(np.ones((5, 2))), torch.strided),
        (np.ones((5, 2), dtype=np.int8), torch.strided),
    ],
)
def test_features_are_sparse_where_at_most_a_quarter_is_non_zero(x, layout):
    graph = Graph.from_edges([[0], [1]], x)
    assert graph.x.layout == layout
    assert graph.x.dtype == torch.float32
    dense = x.toarray() if hasattr(x, "toarray") else torch.as_tensor(x).to_dense().numpy()
    np.testing.assert_array_equal(graph.x.to_dense().numpy(), dense)


X = np.ones((4, 2), dtype=np.float32)
NAN = X.copy()
NAN[2, 1] = np.nan
SPARSE_INF = csr_matrix(([1.0, np.inf], ([0, 3], [0, 1])), shape=(4, 9))
EDGE = [[0], [1]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"x": np.ones((0, 2))}, "0 nodes; contrast needs at least 2"),
        ({"x": np.ones((1, 2)), "edge_index": [[], []]}, "1 node; contrast"),
        ({"x": np.ones((4, 0))}, r"shape \(4, 0\)"),
        ({"x": np.ones(4)}, r"shape \(4,\)"),
        ({"x": np.array([["a"]] * 4)}, "type <U1; give numbers"),
        ({"x": NAN}, r"x\[2, 1\] is nan"),
        ({"x": np.full((4, 1), 1e39)}, r"x\[0, 0\] is inf"),
        ({"x": SPARSE_INF}, r"x\[3, 1\] is inf"),
        ({"edge_index": [[0, 1, 2], [1, 2, 4]]}, r"edge_index\[:, 2\] = \(2, 4\): nodes are numbered 0 to 3"),
        ({"edge_index": [[0, -1], [1, 2]]}, r"edge_index\[:, 1\] = \(-1, 2\)"),
        ({"edge_index": np.zeros((5, 2), int)}, "Transpose"),
        ({"edge_index": [[0.0], [1.0]]}, "float64; node numbers must be integers"),
        ({"weight": [-1.0]}, r"edge_weight\[0\] is -1"),
        ({"weight": [np.nan]}, r"edge_weight\[0\] is nan"),
        ({"weight": [np.inf]}, r"edge_weight\[0\] is inf"),
        ({"weight": [1.0, 1.0]}, "1 edges but weights of shape"),
        ({"ids": ["a", "b", "c", "b"]}, "id b is used twice, by nodes 1 and 3"),
        ({"ids": [1, 2]}, r"ids have shape \(2,\)"),
        ({"ids": [0.5, 1, 2, 3]}, "ids have type float64"),
        ({"ids": np.array([1, 2, 3, 2**63], dtype=np.uint64)}, "does not fit"),
        ({"y": [0, 1, -2, 0]}, "y ranges from -2 to 1"),
        ({"y": [0, 1, 2, 0], "classes": ["a", "b"]}, "only -1 to 1 are classes"),
        ({"y": [0, 1]}, "one integer per node"),
        ({"split": {"train": [0], "val": [1]}}, "needs train, val and test"),
        ({"split": {"train": [0], "val": [1], "test": [4]}}, "split test holds 4 to 4"),
        ({"split": {"train": [0], "val": [1], "test": [0]}}, "in the split twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Graph.from_edges(**{"edge_index": EDGE, "x": X} | arguments)


def example(**changes) -> Graph:
    arguments = {
        "edge_index": [[0, 1, 2], [1, 2, 2]],
        "x": np.arange(12.0).reshape(4, 3),
        "name": "example",
        "ids": ["ä", "b", "ccc", "d"],
        "weight": [1.0, 2.0, 3.0],
        "y": [0, -1, 1, 0],
        "classes": ["no", "yes"],
        "split": {"train": [0], "val": [2], "test": [3]},
    }
    return Graph.from_edges(**arguments | changes)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "graph",
    [
        example(),
        example(x=np.eye(4, 40), ids=[7, 8, -9, 2**62], weight=None, y=None, classes=None, split=None),
        example(edge_index=np.empty((2, 0), int), weight=None, x=np.zeros((4, 3))),
    ],
    ids=["full", "sparse", "no edges"],
)
def test_what_is_saved_opens_equal(tmp_path: Path, graph: Graph, mmap: bool):
    graph.save(tmp_path / "deep" / "graph")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Graph.open(tmp_path / "deep" / "graph", mmap=mmap)
    assert again.fingerprint() == graph.fingerprint()
    assert (again.name, again.classes, again.notes) == (graph.name, graph.classes, graph.notes)
    assert again.ids.tolist() == graph.ids.tolist()
    assert again.x.layout == graph.x.layout
    assert torch.equal(again.x.to_dense(), graph.x.to_dense())
    assert torch.equal(again.edge_index, graph.edge_index)
    for one, other in ((again.y, graph.y), (again.weight, graph.weight)):
        assert other is None if one is None else torch.equal(one, other)
    assert (again.split is None) == (graph.split is None)
    assert all(torch.equal(again.split[key], graph.split[key]) for key in graph.split or ())
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["graph"]


def test_saving_over_something_is_refused_and_leaves_no_rest(tmp_path: Path):
    example().save(tmp_path / "graph")
    before = example().fingerprint()
    with pytest.raises(FileExistsError):
        example(ids=[1, 2, 3, 4]).save(tmp_path / "graph")
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]
    assert Graph.open(tmp_path / "graph").fingerprint() == before


def _cut(path: Path) -> None:
    (path / "x.npy").write_bytes((path / "x.npy").read_bytes()[:-20])


def _forget(path: Path) -> None:
    (path / "indices.npy").unlink()


def _swap(path: Path) -> None:
    np.save(path / "ids.npy", np.arange(3))


def _pickle(path: Path) -> None:
    np.save(path / "ids.npy", np.array([{}], dtype=object), allow_pickle=True)


def _future(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))


def _garble(path: Path) -> None:
    (path / "manifest.json").write_text("{")


@pytest.mark.parametrize("damage", [_cut, _forget, _swap, _pickle, _future, _garble])
@pytest.mark.parametrize("mmap", [True, False])
def test_damaged_directories_are_refused(tmp_path: Path, damage, mmap):
    example().save(tmp_path / "graph")
    damage(tmp_path / "graph")
    with pytest.raises(InvalidInput, match="anew"):
        Graph.open(tmp_path / "graph", mmap=mmap)


def test_fingerprint_follows_what_embeddings_depend_on():
    same = example(y=None, classes=None, split=None, name="other")
    assert same.fingerprint() == example().fingerprint()
    assert example(ids=np.array(["ä", "b", "ccc", "d"], dtype="<U99")).fingerprint() == example().fingerprint()
    changed = [
        example(weight=None),
        example(weight=[1, 2.5, 3]),
        example(ids=["ä", "b", "cc", "cd"]),
        example(x=np.ones((4, 3))),
        example(x=np.eye(4, 40)),
        example(x=np.eye(4, 41)),
        example(edge_index=[[0, 1, 2], [1, 3, 2]]),
        example(directed=True),
    ]
    prints = {graph.fingerprint() for graph in [example(), *changed]}
    assert len(prints) == 1 + len(changed)
