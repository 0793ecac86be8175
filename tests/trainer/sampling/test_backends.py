"""Backends are interchangeable: same conventions, same distributions, seeded by key."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

from trainer.data.graph import Graph
from trainer.data.seeds import key
from trainer.errors import InvalidInput
from trainer.sampling.backends import BACKENDS, available, build_sampler

needs_torch_sparse = pytest.mark.skipif("torch-sparse" not in available(), reason="torch-sparse is not installed")
every_backend = pytest.mark.parametrize("backend", available())


def drawn(graph: Graph, backend: str, fan_outs: list[int], seeds: torch.Tensor, trials: int) -> list[SamplerOutput]:
    sampler = build_sampler(graph, fan_outs, backend)
    outputs = []
    for trial in range(trials):
        sampler.key = key(11, "trial", trial)
        outputs.append(sampler.sample_from_nodes(NodeSamplerInput(None, seeds)))
    return outputs


def test_ours_is_always_available():
    assert available()[0] == "csr"
    assert set(available()) <= set(BACKENDS)


@every_backend
@pytest.mark.parametrize("fan_outs", [[4], [6, 3], [3, -1, 2]])
def test_edges_are_positions_in_the_graph_and_hops_add_up(ragged, backend, fan_outs):
    (out,) = drawn(ragged, backend, fan_outs, torch.arange(20, 300, 7), 1)
    source, target = ragged.edge_index[:, out.edge]
    assert torch.equal(out.node[out.row], source)
    assert torch.equal(out.node[out.col], target)
    assert sum(out.num_sampled_nodes) == len(out.node)
    assert sum(out.num_sampled_edges) == len(out.edge)
    known = edges = 0
    for hop, (k, found, taken) in enumerate(zip(fan_outs, out.num_sampled_nodes, out.num_sampled_edges, strict=False)):
        degree = ragged.indptr.diff()[out.node[known : known + found]]
        assert taken == int((degree if k == -1 else degree.clamp(max=k)).sum())
        known, edges = known + found, edges + taken
        assert len({*range(known), *out.row[:edges].tolist()}) == known + out.num_sampled_nodes[hop + 1]


@every_backend
def test_hops_without_any_edge_are_counted_as_empty(ragged, backend):
    (out,) = drawn(ragged, backend, [4, 4], torch.tensor([285, 290]), 1)
    assert (out.num_sampled_nodes, out.num_sampled_edges) == ([2, 0, 0], [0, 0])


@every_backend
def test_same_key_same_batch_and_torch_stream_untouched(ragged, backend):
    seeds = torch.arange(0, 300, 5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = drawn(ragged, backend, [5, 5], seeds, 2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = drawn(ragged, backend, [5, 5], seeds, 2)
    assert all(torch.equal(a.edge, b.edge) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0].edge, first[1].edge)


@every_backend
def test_sampler_reads_the_arrays_where_they_are(tmp_path, backend):
    """In-edges of the last node: a sparse file of 64 GiB, of which ten pages are read. A copy would need it all."""
    edges = 2**33
    with open(tmp_path / "indices", "wb") as file:
        file.truncate(8 * edges)
    indices = torch.from_file(str(tmp_path / "indices"), shared=True, size=edges, dtype=torch.int64)
    graph = Graph(
        name="sparse", indptr=torch.tensor([0, 0, 0, edges]), indices=indices, x=torch.ones(3, 1), ids=np.arange(3)
    )
    (out,) = drawn(graph, backend, [10], torch.tensor([2, 1]), 1)
    assert len(out.edge.unique()) == 10
    assert int(out.edge.max()) > edges // 2
    assert out.node.tolist() == [2, 1, 0]


def chi_square(difference: torch.Tensor, variance: torch.Tensor, degree: torch.Tensor) -> float:
    """Tail probability of squared differences of edge counts. A node's counts add up: it has degree - 1 of freedom."""
    statistic = (difference.square() / variance * (degree - 1) / degree).sum()
    return float(stats.chi2.sf(float(statistic), float(((degree - 1) / degree).sum())))


def edge_counts(graph: Graph, backend: str, k: int, seeds: torch.Tensor, trials: int) -> torch.Tensor:
    outputs = drawn(graph, backend, [k], seeds, trials)
    return torch.bincount(torch.cat([out.edge for out in outputs]), minlength=graph.num_edges).double()


def test_every_edge_of_a_graph_is_drawn_equally_often_by_ours(even):
    trials, k = 1_000, 6
    degree = torch.repeat_interleave(even.indptr.diff(), even.indptr.diff()).double()
    counts = edge_counts(even, "csr", k, torch.arange(even.num_nodes), trials)
    some = degree > k
    assert (counts[~some] == trials).all()
    share = k / degree[some]
    assert 1e-3 < chi_square(counts[some] - trials * share, trials * share * (1 - share), degree[some]) < 1 - 1e-3


@needs_torch_sparse
def test_neighbours_are_drawn_as_torch_sparse_draws_them(crowded):
    """Each edge's count over many batches. Lists are long, for on short ones torch-sparse is not uniform."""
    trials, k, seeds = 200, 20, torch.arange(0, 500, 12)
    drawn_from = torch.cat([torch.arange(*crowded.indptr[i : i + 2].tolist()) for i in seeds.tolist()])
    degree = torch.repeat_interleave(crowded.indptr.diff(), crowded.indptr.diff())[drawn_from].double()
    ours, theirs = (edge_counts(crowded, name, k, seeds, trials)[drawn_from] for name in ("csr", "torch-sparse"))
    share = k / degree
    assert 1e-3 < chi_square(ours - theirs, 2 * trials * share * (1 - share), degree) < 1 - 1e-3


@needs_torch_sparse
def test_neighbourhoods_grow_as_those_of_torch_sparse(crowded):
    """Nodes per hop and the degrees of the nodes found, over many batches of ours and of theirs."""
    ours, theirs = (drawn(crowded, name, [8, 5], torch.arange(9, 500, 50), 300) for name in ("csr", "torch-sparse"))
    in_degree = crowded.indptr.diff().double()
    out_degree = torch.bincount(crowded.indices, minlength=500).double()
    for measure in (
        lambda out: out.num_sampled_nodes[1],
        lambda out: out.num_sampled_nodes[2],
        lambda out: float(in_degree[out.node].mean()),
        lambda out: float(out_degree[out.node].mean()),
    ):
        assert stats.ks_2samp([measure(out) for out in ours], [measure(out) for out in theirs]).pvalue > 1e-3


def test_unknown_backend_is_refused(ragged):
    with pytest.raises(InvalidInput, match="must be one of csr, torch-sparse, pyg-lib"):
        build_sampler(ragged, [5], "dgl")


@pytest.mark.skipif(set(available()) == set(BACKENDS), reason="every backend is installed")
def test_missing_backend_names_the_remedy(ragged):
    missing = next(name for name in BACKENDS if name not in available())
    with pytest.raises(InvalidInput, match=rf"Install {missing}, or use csr"):
        build_sampler(ragged, [5], missing)


@every_backend
def test_fan_outs_out_of_range_are_refused(ragged, backend):
    with pytest.raises(InvalidInput, match="num_neighbors holds 0"):
        build_sampler(ragged, [5, 0], backend)
