"""An epoch as a sequence of sampled batches that depends on (seed, epoch) and on nothing else.

The nodes, in an order drawn for the epoch, are cut into batches of nearly equal size; each batch of seeds gets its
sampled in-neighbourhood. Not the number of loader processes, nor where a resumed run starts, nor how many workers share
the work changes any batch: everything is named by the batch's number, nothing is remembered from the one before.

PyG's `NodeLoader` does the work. What it loads is batch *numbers*, so neither node lists nor data objects travel.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from trainer.data.graph import Graph
from trainer.data.seeds import generator, key
from trainer.errors import InvalidInput
from trainer.sampling.backends import build_sampler


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """Seeds and the L-hop neighbourhood sampled around them: n nodes, e edges, B seeds."""

    number: int  # of the batch within its epoch, the same for all workers that share it
    seeds: Tensor  # [B] int64, global ids
    n_id: Tensor  # [n] int64, global ids: seeds first, then the nodes found at hop 1, 2, ...
    source: Tensor  # [e] int64, places in n_id
    target: Tensor  # [e] int64, places in n_id, ascending
    e_id: Tensor  # [e] int64, positions in graph.indices
    nodes_per_hop: tuple[int, ...]  # L + 1 numbers, the first is B; sum n
    edges_per_hop: tuple[int, ...]  # L numbers; sum e

    @property
    def num_nodes(self) -> int:
        return self.n_id.numel()

    @property
    def num_edges(self) -> int:
        return self.e_id.numel()

    @property
    def num_hops(self) -> int:
        return len(self.edges_per_hop)


class Batches:
    """The batches of every epoch.

    Args:
        batch_size: largest number of seeds. The ⌈N / batch_size⌉ batches differ by at most one seed, so there is no
            tiny last one. For an odd N a batch_size of 2 would leave a seed alone: one batch then has 3.
        num_neighbors: in-edges per node and hop, -1 for all.
        seed: the run's.
        backend: see `trainer.sampling.backends`.
        loader_workers: processes that sample ahead, forked anew for each epoch; they share the graph's memory.

    Raises:
        InvalidInput: a number out of range, or a backend that is not installed.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        batch_size: int,
        num_neighbors: Sequence[int],
        seed: int,
        backend: str = "csr",
        loader_workers: int = 0,
    ) -> None:
        if batch_size < 2:
            raise InvalidInput(f"batch_size is {batch_size}; contrast needs at least 2 seeds.")
        if loader_workers < 0:
            raise InvalidInput(f"loader_workers is {loader_workers}; give 0 to sample in the training process.")
        if loader_workers and "fork" not in multiprocessing.get_all_start_methods():
            raise InvalidInput(f"loader_workers is {loader_workers}, but this system cannot fork processes. Use 0.")
        self.sampler = build_sampler(graph, num_neighbors, backend)
        self._num_nodes = graph.num_nodes
        self._seed = seed
        self._loader_workers = loader_workers
        self._length = max(1, min(-(-graph.num_nodes // batch_size), graph.num_nodes // 2))

    def __len__(self) -> int:
        return self._length

    def epoch(
        self, epoch: int, *, shuffle: bool = True, start: int = 0, part: tuple[int, int] = (0, 1)
    ) -> Iterator[SampledBatch]:
        """The batches of an epoch, in order.

        Args:
            epoch: number of the epoch, at least 0.
            shuffle: a random order of nodes for each epoch; else node order.
            start: batches to leave out, without sampling them; the others are what they would have been.
            part: (rank, size): the seeds of worker `rank` out of `size`, a contiguous share of every batch. Shares
                differ by at most one seed and, in order of rank, make up the batch.

        Raises:
            InvalidInput: start or part out of range, or more workers than a batch has seeds.
        """
        rank, size = part
        if not 0 <= start <= len(self):
            raise InvalidInput(f"start is {start}, but an epoch has {len(self)} batches.")
        if not 0 <= rank < size:
            raise InvalidInput(f"part is ({rank}, {size}); a rank is at least 0 and below the number of workers.")
        smallest = self._num_nodes // len(self)
        if size > smallest:
            raise InvalidInput(
                f"{size} workers share batches of {smallest} seeds, so some would have none. "
                "Use fewer workers or a larger batch_size."
            )
        if start == len(self):
            return iter(())
        order = (
            torch.randperm(self._num_nodes, generator=generator(self._seed, "order", epoch))
            if shuffle
            else torch.arange(self._num_nodes)
        )
        plan = _Plan(order, len(self), part, self._seed, epoch)
        return iter(_BatchLoader(self.sampler, plan, range(start, len(self)), self._loader_workers))


def cut(total: int, part: int, parts: int) -> tuple[int, int]:
    """Begin and end of one of `parts` contiguous pieces of range(total), whose lengths differ by at most one."""
    return total * part // parts, total * (part + 1) // parts


@dataclass(frozen=True, eq=False)
class _Plan:
    """What a batch's number means in one epoch, for one worker."""

    order: Tensor  # [N] all nodes
    length: int
    part: tuple[int, int]
    seed: int
    epoch: int

    def seeds(self, number: int) -> Tensor:
        begin, end = cut(len(self.order), number, self.length)
        first, last = cut(end - begin, *self.part)
        return self.order[begin + first : begin + last]

    def key(self, number: int) -> int:
        return key(self.seed, "neighbours", self.epoch, number)


_Shipment = tuple[int, Tensor | tuple[Tensor, ...], list[int], list[int]]


class _BatchLoader(NodeLoader):
    """Loads batches by number, here or in processes of its own."""

    def __init__(self, sampler: BaseSampler, plan: _Plan, numbers: range, workers: int) -> None:
        self.plan = plan
        super().__init__(
            Data(num_nodes=len(plan.order)),
            sampler,
            plan.order,
            filter_per_worker=False,  # so filter_fn runs in this process
            batch_size=None,  # what is loaded are batches already
            sampler=numbers,
            num_workers=workers,
            worker_init_fn=_leave_ctrl_c_to_main if workers else None,
            multiprocessing_context="fork" if workers else None,  # any other way would copy the graph
            generator=torch.Generator(),  # or else each epoch would draw from torch's global stream
        )

    def collate_fn(self, number: int) -> _Shipment:
        """Sample the batch of this number, in whatever process."""
        self.node_sampler.key = self.plan.key(number)
        out: SamplerOutput = self.node_sampler.sample_from_nodes(NodeSamplerInput(None, self.plan.seeds(number)))
        tensors = (out.node, out.row, out.col, out.edge)
        # To another process, one tensor takes one file handle and less time than four.
        sent = tensors if get_worker_info() is None else torch.cat(tensors)
        return number, sent, out.num_sampled_nodes, out.num_sampled_edges

    def filter_fn(self, shipment: _Shipment) -> SampledBatch:
        """Unpack in the main process."""
        number, tensors, nodes, edges = shipment
        if isinstance(tensors, Tensor):
            tensors = tensors.split([sum(nodes), *[sum(edges)] * 3])
        n_id, source, target, e_id = tensors
        return SampledBatch(number, n_id[: nodes[0]], n_id, source, target, e_id, tuple(nodes), tuple(edges))


def _leave_ctrl_c_to_main(worker: int) -> None:
    """A Ctrl-C reaches loader processes too, but the run may want to end its epoch. They end with the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
