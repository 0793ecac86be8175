"""Our sampler does what PyG's does, on the graph's own arrays, with draws that belong to nodes and not to batches."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput, SamplerOutput

from trainer.data.graph import Graph
from trainer.data.seeds import key
from trainer.errors import InvalidInput
from trainer.sampling.backends import available
from trainer.sampling.csr import MAX_DRAWS, CsrSampler

needs_torch_sparse = pytest.mark.skipif("torch-sparse" not in available(), reason="torch-sparse is not installed")
FAN_OUTS = [[-1], [3], [5, 3], [10, 10, 2], [-1, 4], [4, -1], [1, 1, 1, 1]]


def sample(graph: Graph, seeds: list[int], fan_outs: list[int], draws: int = 1) -> SamplerOutput:
    return CsrSampler(graph, fan_outs, draws).sample_from_nodes(NodeSamplerInput(None, torch.tensor(seeds)))


def some_seeds(graph: Graph, count: int, number: int = 0) -> list[int]:
    return torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(number))[:count].tolist()


def neighbours(out: SamplerOutput) -> dict[int, list[int]]:
    """Sampled edges into each node that had its turn."""
    expanded = sum(out.num_sampled_nodes[:-1])
    taken: dict[int, list[int]] = {int(i): [] for i in out.node[:expanded]}
    for target, edge in zip(out.node[out.col].tolist(), out.edge.tolist(), strict=True):
        taken[target].append(edge)
    return taken


@pytest.mark.parametrize("fan_outs", FAN_OUTS)
def test_every_sampled_edge_exists_under_its_id(ragged, fan_outs):
    out = sample(ragged, some_seeds(ragged, 40), fan_outs)
    source, target = ragged.edge_index[:, out.edge]
    assert torch.equal(out.node[out.row], source)
    assert torch.equal(out.node[out.col], target)


@pytest.mark.parametrize("fan_outs", FAN_OUTS)
def test_each_node_takes_its_fan_out_once_without_replacement(ragged, fan_outs):
    out = sample(ragged, some_seeds(ragged, 40), fan_outs)
    assert len(out.edge.unique()) == len(out.edge)
    degree = ragged.indptr.diff()[out.node]
    start = 0
    for k, nodes in zip(fan_outs, out.num_sampled_nodes, strict=False):
        own = slice(start, start + nodes)
        taken = torch.bincount(out.col, minlength=len(out.node))[own]
        assert torch.equal(taken, degree[own] if k == -1 else degree[own].clamp(max=k))
        start += nodes
    assert int(out.col.max()) < start  # the nodes of the last hop take nothing


@pytest.mark.parametrize("fan_outs", FAN_OUTS)
def test_nodes_and_edges_come_hop_by_hop_and_target_by_target(ragged, fan_outs):
    seeds = some_seeds(ragged, 40)
    out = sample(ragged, seeds, fan_outs)
    assert out.node[:40].tolist() == seeds
    assert len(out.node.unique()) == len(out.node) == sum(out.num_sampled_nodes)
    assert len(out.row) == len(out.col) == len(out.edge) == sum(out.num_sampled_edges)
    assert len(out.num_sampled_nodes) == len(out.num_sampled_edges) + 1 == len(fan_outs) + 1
    assert (out.col.diff() >= 0).all()
    met = list(dict.fromkeys([*seeds, *out.node[out.row].tolist()]))  # in the order of first appearance
    assert out.node.tolist() == met
    known = edges = 0
    for found, taken in zip(out.num_sampled_nodes, out.num_sampled_edges, strict=False):
        targets = out.col[edges : edges + taken]
        assert ((known <= targets) & (targets < known + found)).all()
        known, edges = known + found, edges + taken


@needs_torch_sparse
@pytest.mark.parametrize("fan_outs", [[-1], [-1, -1], [-1, 1_000, -1]])
@pytest.mark.parametrize("name", ["ragged", "even"])
def test_complete_lists_equal_those_of_pyg(fan_outs, name, request):
    graph = request.getfixturevalue(name)
    inputs = NodeSamplerInput(torch.arange(30), torch.tensor(some_seeds(graph, 30)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
        data = Data(edge_index=graph.edge_index, num_nodes=graph.num_nodes)
        theirs = NeighborSampler(data, fan_outs, is_sorted=True)
    expected = theirs.sample_from_nodes(inputs)
    out = CsrSampler(graph, fan_outs).sample_from_nodes(inputs)
    for field in ("node", "row", "col", "edge"):
        assert torch.equal(getattr(out, field), getattr(expected, field)), field
    assert out.metadata[0] is inputs.input_id
    assert out.metadata[1] is None


def test_a_node_has_the_same_neighbours_whatever_is_sampled_beside_it(ragged):
    first = neighbours(sample(ragged, some_seeds(ragged, 60, 1), [4, 4, 4]))
    second = neighbours(sample(ragged, some_seeds(ragged, 25, 2), [4, 4, 4]))
    shared = first.keys() & second.keys()
    assert len(shared) > 30
    assert {i: first[i] for i in shared} == {i: second[i] for i in shared}


def test_another_key_draws_other_neighbours(ragged):
    seeds = list(range(60))
    first, second = (neighbours(sample(ragged, seeds, [4], key(0, "neighbours", 0, batch))) for batch in (0, 1))
    long = [i for i in first if len(first[i]) == 4 and int(ragged.indptr[i + 1] - ragged.indptr[i]) > 12]
    assert len(long) > 5
    assert sum(set(first[i]) == set(second[i]) for i in long) <= 1


def test_batches_of_one_sampler_leave_no_trace_on_each_other(ragged):
    sampler = CsrSampler(ragged, [5, 5], 3)
    for number in range(5):
        seeds = some_seeds(ragged, 50, number)
        out, fresh = (
            sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor(seeds))),
            sample(ragged, seeds, [5, 5], 3),
        )
        for field in ("node", "row", "col", "edge"):
            assert torch.equal(getattr(out, field), getattr(fresh, field))


def test_a_refused_batch_leaves_no_trace(ragged):
    sampler = CsrSampler(ragged, [5], 3)
    with pytest.raises(InvalidInput, match="seed 7 is in the batch twice"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3, 7, 9, 7])))
    with pytest.raises(InvalidInput, match="seeds range from -1 to 5; nodes are 0 to 299"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([5, -1])))
    with pytest.raises(InvalidInput, match="to 300;"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([300, 2])))
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([7, 3])))
    assert torch.equal(out.node, sample(ragged, [7, 3], [5], 3).node)


def test_isolated_nodes_are_batches_without_edges(ragged):
    out = sample(ragged, [290, 280, 299], [5, -1])
    assert out.node.tolist() == [290, 280, 299]
    assert out.num_sampled_nodes == [3, 0, 0]
    assert out.num_sampled_edges == [0, 0]
    assert out.row.dtype == out.col.dtype == out.edge.dtype == torch.int64


def test_no_seeds_are_an_empty_batch(ragged):
    out = CsrSampler(ragged, [5]).sample_from_nodes(NodeSamplerInput(None, torch.empty(0, dtype=torch.int64)))
    assert (len(out.node), len(out.edge), out.num_sampled_nodes, out.num_sampled_edges) == (0, 0, [0, 0], [0])


@pytest.mark.parametrize("k", [1, 10, 10_000, -1])
def test_hub_with_a_hundred_thousand_neighbours(k):
    leaves = 100_000
    edges = np.stack([np.arange(1, leaves + 1), np.zeros(leaves, dtype=np.int64)])
    graph = Graph.from_edges(edges, np.ones((leaves + 1, 1), dtype=np.float32), directed=True)
    out = sample(graph, [0, 5], [k, k])
    count = leaves if k == -1 else k
    assert len(out.edge.unique()) == count
    assert out.num_sampled_edges == [count, 0]
    assert out.num_sampled_nodes[1] >= count - 1  # leaf 5 may be among them
    if k == 10_000:  # the middle of the picks is the middle of the list: within 5 standard deviations
        assert abs(float(out.edge.double().mean()) - leaves / 2) < 5 * leaves / (12 * k) ** 0.5


@pytest.mark.parametrize("fan_outs", [[], [0], [5, 0], [-2], [MAX_DRAWS + 1]])
def test_fan_outs_out_of_range_are_refused(ragged, fan_outs):
    with pytest.raises(InvalidInput, match="num_neighbors"):
        CsrSampler(ragged, fan_outs)
