"""An epoch's batches follow from (seed, epoch) alone: not from processes, workers, or where a run was resumed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch

from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.sampling.backends import available
from trainer.sampling.batches import Batches, SampledBatch, cut

every_backend = pytest.mark.parametrize("backend", available())
FIELDS = ("seeds", "n_id", "source", "target", "e_id")


def batches(graph: Graph, **changes) -> Batches:
    return Batches(graph, **{"batch_size": 64, "num_neighbors": [5, 5], "seed": 3} | changes)


def same(first: SampledBatch, second: SampledBatch) -> bool:
    hops = ("number", "nodes_per_hop", "edges_per_hop")
    return all(torch.equal(getattr(first, field), getattr(second, field)) for field in FIELDS) and all(
        getattr(first, field) == getattr(second, field) for field in hops
    )


def all_same(first: list[SampledBatch], second: list[SampledBatch]) -> bool:
    return len(first) == len(second) and all(map(same, first, second))


def without_features(num_nodes: int) -> Graph:
    return Graph.from_edges([[0], [1]], np.ones((num_nodes, 1), dtype=np.float32))


@every_backend
def test_a_batch_is_a_subgraph_of_its_seeds(ragged, backend):
    source, target = ragged.edge_index
    seen = []
    for number, batch in enumerate(batches(ragged, backend=backend).epoch(0)):
        assert batch.number == number
        assert torch.equal(batch.n_id[: len(batch.seeds)], batch.seeds)
        assert torch.equal(batch.n_id[batch.source], source[batch.e_id])
        assert torch.equal(batch.n_id[batch.target], target[batch.e_id])
        assert batch.nodes_per_hop[0] == len(batch.seeds)
        assert sum(batch.nodes_per_hop) == batch.num_nodes == len(batch.n_id)
        assert sum(batch.edges_per_hop) == batch.num_edges == len(batch.source)
        assert (batch.target.diff() >= 0).all()
        assert len(batch.nodes_per_hop) == 3
        assert batch.num_hops == 2
        seen.append(batch.seeds)
    assert torch.cat(seen).sort().values.tolist() == list(range(300))
    assert torch.cat(seen).tolist() != list(range(300))


@pytest.mark.parametrize(
    "nodes, size", [(300, 64), (300, 7), (300, 299), (97, 10), (101, 2), (3, 2), (5, 1_024), (2, 2)]
)
def test_batches_are_of_nearly_equal_size_and_never_of_one_seed(nodes, size):
    found = batches(without_features(nodes), batch_size=size, num_neighbors=[-1])
    sizes = [len(batch.seeds) for batch in found.epoch(1)]
    assert len(found) == len(sizes)
    assert sum(sizes) == nodes
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 2
    if not (size == 2 and nodes % 2):
        assert len(sizes) == -(-nodes // size)
        assert max(sizes) <= size


def test_unshuffled_epoch_is_in_node_order(ragged):
    order = torch.cat([batch.seeds for batch in batches(ragged).epoch(4, shuffle=False)])
    assert order.tolist() == list(range(300))


@every_backend
def test_loader_processes_change_nothing(ragged, backend):
    ours = list(batches(ragged, backend=backend, batch_size=20).epoch(2))
    theirs = list(batches(ragged, backend=backend, batch_size=20, loader_workers=2).epoch(2))
    assert all_same(ours, theirs)


@every_backend
def test_same_seed_and_epoch_give_the_same_batches_and_others_do_not(ragged, backend):
    first = list(batches(ragged, backend=backend).epoch(2))
    again = batches(ragged, backend=backend)
    list(again.epoch(1))  # what was sampled before does not matter
    assert all_same(first, list(again.epoch(2)))
    for other in (again.epoch(3), batches(ragged, backend=backend, seed=4).epoch(2)):
        assert not any(map(same, first, other))


@every_backend
def test_each_batch_and_epoch_draws_neighbours_anew(crowded, backend):
    """Node order, so that the seeds of an epoch's batches are known."""
    found = batches(crowded, backend=backend, batch_size=250, num_neighbors=[5])
    first, second = (list(found.epoch(epoch, shuffle=False)) for epoch in (0, 1))
    assert torch.equal(first[0].seeds, second[0].seeds)
    shared = np.intersect1d(first[0].e_id.numpy(), second[0].e_id.numpy())
    assert len(shared) < 0.06 * first[0].num_edges  # 5 of at least 100 each: a twentieth is there by chance
    offsets = [batch.e_id - crowded.indptr[batch.n_id[batch.target]] for batch in first]
    assert (offsets[0] != offsets[1]).float().mean() > 0.9


@every_backend
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_start_gives_the_very_same_remaining_batches(ragged, backend, loader_workers):
    found = batches(ragged, backend=backend, batch_size=40, loader_workers=loader_workers)
    whole = list(found.epoch(5))
    for start in (1, 6, len(found)):
        assert all_same(list(found.epoch(5, start=start)), whole[start:])


@pytest.mark.parametrize("size", [2, 3])
def test_parts_make_up_the_batch_with_the_same_neighbours(ragged, size):
    found = batches(ragged)
    for whole, *parts in zip(found.epoch(1), *(found.epoch(1, part=(rank, size)) for rank in range(size)), strict=True):
        assert torch.equal(torch.cat([part.seeds for part in parts]), whole.seeds)
        lengths = [len(part.seeds) for part in parts]
        assert max(lengths) - min(lengths) <= 1
        assert {part.number for part in parts} == {whole.number}
        # With equal fan-outs a node has the same in-edges in every part, so together they are the whole batch.
        assert set(torch.cat([part.e_id for part in parts]).tolist()) == set(whole.e_id.tolist())


@every_backend
def test_parts_of_any_backend_make_up_the_seeds(ragged, backend):
    found = batches(ragged, backend=backend)
    for whole, first, second in zip(
        found.epoch(1), found.epoch(1, part=(0, 2)), found.epoch(1, part=(1, 2)), strict=True
    ):
        assert torch.equal(torch.cat([first.seeds, second.seeds]), whole.seeds)


@every_backend
@pytest.mark.parametrize("loader_workers", [0, 1])
def test_torch_stream_of_the_training_is_untouched(ragged, backend, loader_workers):
    before = torch.get_rng_state()
    list(batches(ragged, backend=backend, loader_workers=loader_workers).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@every_backend
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_read_only_memory_mapped_graph_gives_the_same_batches(ragged, tmp_path, backend, loader_workers):
    ragged.save(tmp_path / "graph")
    for path in (tmp_path / "graph").iterdir():
        path.chmod(0o400)
    digests = {path: hashlib.sha256(path.read_bytes()).digest() for path in (tmp_path / "graph").iterdir()}
    mapped = Graph.open(tmp_path / "graph")
    found = list(batches(mapped, backend=backend, loader_workers=loader_workers).epoch(0))
    assert all_same(found, list(batches(ragged, backend=backend).epoch(0)))
    assert {path: hashlib.sha256(path.read_bytes()).digest() for path in digests} == digests


def test_loader_processes_share_the_graph_instead_of_copying_it(tmp_path):
    """The list of the last node's in-neighbours is a sparse file of 64 GiB: no process could hold a copy."""
    edges = 2**33
    with open(tmp_path / "indices", "wb") as file:
        file.truncate(8 * edges)
    indices = torch.from_file(str(tmp_path / "indices"), shared=True, size=edges, dtype=torch.int64)
    indptr = torch.tensor([0, 0, 0, edges])
    graph = Graph(name="sparse", indptr=indptr, indices=indices, x=torch.ones(3, 1), ids=np.arange(3))
    (batch,) = batches(graph, num_neighbors=[10], loader_workers=1).epoch(0)
    assert batch.num_edges == 10


def test_an_epoch_left_half_way_ends_its_processes_and_spoils_nothing(ragged):
    before = set(multiprocessing.active_children())
    found = batches(ragged, batch_size=10, loader_workers=2)
    some = found.epoch(0)
    next(some)
    assert len(set(multiprocessing.active_children()) - before) == 2
    del some
    assert set(multiprocessing.active_children()) <= before
    assert all_same(list(found.epoch(1)), list(batches(ragged, batch_size=10).epoch(1)))


def test_two_epochs_may_be_under_way_at_once(ragged):
    found = batches(ragged)
    expected = list(found.epoch(0)), list(found.epoch(1))
    both = list(zip(found.epoch(0), found.epoch(1), strict=True))
    assert all_same([first for first, _ in both], expected[0])
    assert all_same([second for _, second in both], expected[1])


def test_ctrl_c_leaves_the_loader_processes_to_the_main_process(ragged):
    before = set(multiprocessing.active_children())
    found = batches(ragged, batch_size=10, loader_workers=2)
    epoch = found.epoch(0)
    got = [next(epoch), next(epoch)]  # one from each, so both have started
    for process in set(multiprocessing.active_children()) - before:
        os.kill(process.pid, signal.SIGINT)
    got += list(epoch)
    assert all_same(got, list(batches(ragged, batch_size=10).epoch(0)))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_size": 1}, "batch_size is 1"),
        ({"loader_workers": -1}, "loader_workers is -1"),
        ({"num_neighbors": []}, "num_neighbors is empty"),
        ({"num_neighbors": [3, 0]}, "num_neighbors holds 0"),
        ({"backend": "gpu"}, "sampling.backend is 'gpu'"),
    ],
)
def test_wrong_settings_are_refused(ragged, changes, message):
    with pytest.raises(InvalidInput, match=message):
        batches(ragged, **changes)


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"start": -1}, "start is -1"),
        ({"start": 6}, "start is 6, but an epoch has 5 batches"),
        ({"part": (2, 2)}, r"part is \(2, 2\)"),
        ({"part": (-1, 2)}, r"part is \(-1, 2\)"),
        ({"part": (0, 0)}, r"part is \(0, 0\)"),
        ({"part": (0, 61)}, "61 workers share batches of 60 seeds"),
    ],
)
def test_an_epoch_that_cannot_be_is_refused_at_once(ragged, asked, message):
    with pytest.raises(InvalidInput, match=message):
        batches(ragged).epoch(0, **asked)


@pytest.mark.parametrize("total, parts", [(10, 3), (3, 10), (0, 2), (1_000, 7)])
def test_cuts_are_contiguous_and_nearly_equal(total, parts):
    pieces = [range(*cut(total, part, parts)) for part in range(parts)]
    assert [i for piece in pieces for i in piece] == list(range(total))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
