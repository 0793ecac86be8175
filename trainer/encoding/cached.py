"""Every node's embedding with the memory of one batch: gradient caching (design section 3).

    encode      each batch without a graph, into two tables U and V
    loss        exact, on the tables; its backward gives dL/dU and dL/dV
    backward    each batch again, now with a graph and with the very same sampling, augmentation and noise (all are
                functions of the seed, the epoch and the batch), from its rows of dL/dU and dL/dV to the parameters

With complete neighbour lists the gradient is that of the whole graph. Memory: U, V and their gradients, 4 N × dim
floats, and the activations of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.data.seeds import generator
from trainer.encoding.pair import Encoding, Pair
from trainer.encoding.sampled import EpochViews, SampledGraph, SampledPair


class CachedGraph(Encoding):
    """One pair an epoch over all nodes (in a team: over this worker's), encoded batch by batch."""

    steps = 1

    def __init__(self, sampled: SampledGraph):
        self.sampled = sampled

    def pairs(self, epoch: int, start: int = 0) -> Iterator[Pair]:
        if start == 0:
            yield _CachedPair(self.sampled, epoch)


class _CachedPair(Pair):
    def __init__(self, sampled: SampledGraph, epoch: int):
        self._sampled, self._epoch, self._round = sampled, epoch, 0
        self._views = EpochViews(
            sampled.spec, sampled.graph, epoch, sampled.device, sampled.dtype, redraw_columns=False, rates=sampled.rates
        )
        self.noise = generator(
            sampled.spec.run.seed, "noise", epoch, sampled.steps, sampled.team.rank, device=sampled.device
        )
        self._tables: tuple[Tensor, Tensor] | None = None

    def encode(self, encoder: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        if encoder is not None:
            raise NotImplementedError("only the run's own encoder: leave `cached` out of the method's `scopes`")
        self._round += 1
        nodes, first, second = [], [], []
        with torch.no_grad():
            for pair in self._batches():
                u, v = pair.encode()
                nodes.append(pair.nodes)
                first.append(u)
                second.append(v)
        self.nodes = torch.cat(nodes)
        u = _drained(first)
        v = _drained(second)
        self._tables = u.requires_grad_(), v.requires_grad_()
        return self._tables

    def backward(self, loss: Tensor) -> None:
        assert self._tables is not None
        loss.backward()
        du, dv = (table.grad for table in self._tables)
        assert du is not None
        assert dv is not None
        start = 0
        for pair in self._batches():
            u, v = pair.encode()
            rows = slice(start, start + len(u))
            torch.autograd.backward([u, v], [du[rows], dv[rows]])
            start = rows.stop

    def _batches(self) -> Iterator[SampledPair]:
        """The same batches, with the same noise until `encode` is called again."""
        sampled = self._sampled
        part = (sampled.team.rank, sampled.team.size)
        for batch in sampled.batches.epoch(self._epoch, shuffle=False, part=part):
            noise = generator(
                sampled.spec.run.seed, "noise", self._epoch, batch.number, sampled.team.rank, self._round,
                device=sampled.device,
            )  # fmt: skip
            yield SampledPair(sampled.encoder, self._views, batch, noise)
            sampled.graph.release()


def _drained(parts: list[Tensor]) -> Tensor:
    """The parts as one table; each is freed once copied, so that they are never held twice."""
    table = parts[0].new_empty(sum(len(part) for part in parts), parts[0].shape[1])
    start = 0
    for index, part in enumerate(parts):
        table[start : start + len(part)] = part
        start += len(part)
        parts[index] = part.new_empty(0)
    return table
