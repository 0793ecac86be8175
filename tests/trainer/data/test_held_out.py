"""Held-out edges: gone in both directions, chosen by a hash and nothing else, and kept wherever the graph goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data import held_out
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.held_out import hold_out
from trainer.errors import InvalidInput
from trainer.spec.data import DataSpec, SyntheticSpec


def random_graph(nodes: int = 300, edges: int = 2_000, *, directed: bool = False, weighted: bool = True) -> Graph:
    random = np.random.default_rng(0)
    listed = random.integers(nodes, size=(2, edges))
    weight = random.random(edges) if weighted else None
    return Graph.from_edges(listed, np.ones((nodes, 3)), weight=weight, directed=directed)


def ring(nodes: int) -> Graph:
    around = np.arange(nodes)
    return Graph.from_edges([around, (around + 1) % nodes], np.ones((nodes, 2)))


def weights(graph: Graph) -> dict[tuple[int, int], float]:
    """(source, target) of each stored edge, and its weight (1 without)."""
    values = torch.ones(graph.num_edges) if graph.weight is None else graph.weight
    return dict(zip(map(tuple, graph.edge_index.T.tolist()), values.tolist(), strict=True))


def pairs(graph: Graph) -> list[tuple[int, int]]:
    return [(low, high) for low, high in graph.held_out.T.tolist()]


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_held_out_pair_loses_both_directions_and_nothing_else_changes(directed, weighted):
    whole = random_graph(directed=directed, weighted=weighted)
    graph = hold_out(whole, 0.2, seed=0)
    held = set(pairs(graph))
    linked = {(min(edge), max(edge)) for edge in weights(whole)}
    assert held < linked
    assert weights(graph) == {
        edge: weight for edge, weight in weights(whole).items() if (min(edge), max(edge)) not in held
    }
    assert pairs(graph) == sorted(held)
    assert all(low < high for low, high in held)
    assert abs(len(held) - 0.2 * len(linked)) < 4 * (0.2 * 0.8 * len(linked)) ** 0.5
    assert graph.x is whole.x
    assert f"held out {len(held)} pairs" in graph.notes[-1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=5, max_size=40), st.integers(8, 200))
def test_pieces_of_any_size_give_the_same_graph(edges, piece_bytes):
    whole = Graph.from_edges(np.array(edges).T, np.ones((12, 1)), directed=True)
    try:
        expected = hold_out(whole, 0.3, seed=1)
    except InvalidInput:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "PIECE_BYTES", piece_bytes)
        found = hold_out(whole, 0.3, seed=1)
    for name in ("indptr", "indices", "held_out"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_the_choice_is_fixed_for_every_machine_and_version():
    assert pairs(hold_out(ring(12), 0.3, seed=0)) == [(2, 3), (4, 5), (9, 10)]


def test_the_choice_depends_on_seed_and_pair_and_not_on_the_rest_of_the_graph():
    whole = random_graph(weighted=False)
    first, again, other = (hold_out(whole, 0.2, seed) for seed in (0, 0, 1))
    assert pairs(first) == pairs(again) != pairs(other)
    assert set(pairs(first)) < set(pairs(hold_out(whole, 0.3, seed=0)))
    one_way = Graph.from_edges(whole.edge_index[:, ::2], whole.x, directed=True)
    linked = {(min(edge), max(edge)) for edge in weights(one_way)}
    assert set(pairs(hold_out(one_way, 0.2, seed=0))) == set(pairs(first)) & linked


@pytest.mark.parametrize(
    "graph, share, message",
    [
        (Graph.from_edges(np.zeros((2, 0), int), np.ones((3, 2))), 0.5, r"none of its 0 edges.*Raise data\.held_out"),
        (ring(5), 1e-9, r"holds out none of its 10 edges\. Raise data\.held_out_edges"),
        (ring(5), 1.0, r"none of its 10 edges to train on\. Lower data\.held_out_edges"),
        (hold_out(ring(50), 0.3, 0), 0.1, r"held out already\. Set data\.held_out_edges to 0"),
    ],
)
def test_nothing_to_hold_out_or_to_train_on_is_refused_with_a_remedy(graph, share, message):
    with pytest.raises(InvalidInput, match=message):
        hold_out(graph, share, seed=0)


def test_a_mapped_graph_keeps_its_features_and_ids_in_their_files(tmp_path: Path):
    whole = random_graph()
    whole.save(tmp_path / "graph")
    mapped = Graph.open(tmp_path / "graph")
    graph = hold_out(mapped, 0.2, seed=0)
    assert graph.is_mapped
    assert graph.x.data_ptr() == mapped.x.data_ptr()
    assert isinstance(graph.ids, np.memmap)
    expected = hold_out(whole, 0.2, seed=0)
    for name in ("indptr", "indices", "weight", "held_out"):
        assert torch.equal(getattr(graph, name), getattr(expected, name))
    graph.release()
    assert graph.fingerprint() == expected.fingerprint() != whole.fingerprint()


@pytest.mark.parametrize("mmap", [True, False])
def test_saved_and_opened_the_pairs_are_still_held_out(tmp_path: Path, mmap):
    graph = hold_out(random_graph(), 0.1, seed=3)
    graph.save(tmp_path / "graph")
    opened = Graph.open(tmp_path / "graph", mmap=mmap)
    assert torch.equal(opened.held_out, graph.held_out)
    assert opened.fingerprint() == graph.fingerprint()
    with pytest.raises(InvalidInput, match="held out already"):
        hold_out(opened, 0.1, seed=0)


def test_a_graph_saved_without_held_out_pairs_opens_without(tmp_path: Path):
    random_graph().save(tmp_path / "graph")
    assert not (tmp_path / "graph" / "held_out.npy").exists()
    assert Graph.open(tmp_path / "graph").held_out is None


@pytest.mark.parametrize("features", ["raw", "rownorm", "zscore"])
def test_loading_holds_out_what_the_spec_says(features):
    plain = DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=200), features=features)
    assert load(plain).held_out is None
    asked = plain.model_copy(update={"held_out_edges": 0.25, "held_out_seed": 5})
    expected = hold_out(load(plain), 0.25, seed=5)
    found = load(asked)
    assert torch.equal(found.held_out, expected.held_out)
    assert found.fingerprint() == expected.fingerprint()
    assert replace(found, x=found.x).held_out is found.held_out
