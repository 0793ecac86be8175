"""The workers of a data-parallel run, as a method sees them: ranks 0 … size-1 and a few sums over all of them.

Each worker calls the same operations in the same order; one that leaves an operation out makes the others wait. A team
of one needs no process group and every operation is the identity, so the same code trains alone and in company.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Team:
    """This worker's place among `size` workers, 0 ≤ rank < size."""

    rank: int
    size: int

    @classmethod
    def solo(cls) -> Team:
        """A single worker, without torch.distributed."""
        return cls(rank=0, size=1)

    @classmethod
    def of_process_group(cls) -> Team:
        """The workers of the initialised default group of torch.distributed (gloo on CPUs, nccl on GPUs)."""
        return cls(rank=dist.get_rank(), size=dist.get_world_size())

    def gather(self, x: Tensor) -> Tensor:
        """Rows of all workers in the order of their ranks.  [n_w, ...] -> [Σ n_w, ...]; n_w may differ by worker.

        Differentiable: backward sums the gradients that all workers have for the gathered rows and gives each worker
        its own, as if one process had concatenated the rows and added up the workers' losses. So backward must run
        on every worker, and reach its gathers in the same order.
        """
        return x if self.size == 1 else _Gather.apply(x, self)

    def own_rows(self, count: int) -> slice:
        """Where this worker's `count` rows stand among those that `gather` gives."""
        counts = self.counts(count)
        return slice(sum(counts[: self.rank]), sum(counts[: self.rank + 1]))

    def counts(self, count: int) -> list[int]:
        """Every worker's `count`, by rank."""
        each = torch.zeros(self.size, dtype=torch.int64)
        each[self.rank] = count
        return [int(found) for found in self.total(each)]

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each `.grad` by its sum over workers; no gradient counts as 0, and none anywhere stays none."""
        held = list(parameters)
        if self.size == 1 or not held:
            return
        holders = self.total(torch.tensor([parameter.grad is not None for parameter in held], dtype=torch.int64))
        held = [parameter for parameter, holder in zip(held, holders.tolist(), strict=True) if holder]
        for dtype in dict.fromkeys(parameter.dtype for parameter in held):  # one buffer, one message for each dtype
            self._sum_into([parameter for parameter in held if parameter.dtype == dtype])

    def _sum_into(self, parameters: Sequence[Tensor]) -> None:
        device = _meeting_device()
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in parameters]
        buffer = torch.cat([grad.detach().to(device).reshape(-1) for grad in grads])
        dist.all_reduce(buffer)
        for part, summed in zip(parameters, buffer.split([part.numel() for part in parameters]), strict=True):
            part.grad = summed.reshape(part.shape).to(part.device, copy=True)  # a copy, or the buffer lives as long

    def total(self, values: Tensor) -> Tensor:
        """Sum of every worker's `values`, which have the same shape; no gradient flows through it."""
        if self.size == 1:
            return values.detach()
        summed = values.detach().to(_meeting_device(), copy=True).contiguous()
        dist.all_reduce(summed)
        return summed.to(values.device)

    def any(self, flag: bool) -> bool:
        """Whether at least one worker says yes."""
        return bool(self.total(torch.tensor(int(flag))) > 0)

    def broadcast(self, x: Tensor, source: int = 0) -> None:
        """Overwrite x with the `source` worker's x, of the same shape and dtype."""
        if self.size == 1:
            return
        carried = x.detach().to(_meeting_device()).contiguous()
        dist.broadcast(carried, src=source)
        with torch.no_grad():
            x.copy_(carried)

    def barrier(self) -> None:
        """Return once every worker has come here."""
        self.any(False)


class _Gather(torch.autograd.Function):
    """Padded all-gather; its transpose is a sum over workers, of which each keeps its own rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        device = _meeting_device()
        counts = team.counts(len(x))
        ctx.own = slice(sum(counts[: team.rank]), sum(counts[: team.rank + 1]))
        padded = torch.zeros(max(counts), *x.shape[1:], dtype=x.dtype, device=device)  # messages have one size
        padded[: len(x)] = x
        received = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(received, padded)
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)]).to(x.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        summed = grad.to(_meeting_device(), copy=True).contiguous()
        dist.all_reduce(summed)
        return summed[ctx.own].to(grad.device), None


def _meeting_device() -> torch.device:
    """Where the group's backend wants its tensors: nccl on this worker's GPU, gloo in main memory."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
