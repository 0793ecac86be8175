"""One worker of a team, as a script: `member.py RANK SIZE FOLDER`, meeting the others over loopback with gloo.

It does what test_team.py describes and leaves what it got in FOLDER/RANK.npz.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.trainer.distributed.teams import leave
from trainer.distributed.team import Team


def rows_of(rank: int) -> Tensor:
    """Worker `rank` holds 3 + rank rows, so no two hold equally many."""
    return torch.randn(3 + rank, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def loss_of(rank: int, gathered: Tensor) -> Tensor:
    """Each worker's loss looks at all rows, and no two workers at the same function of them."""
    weights = torch.linspace(-1, 1 + rank, gathered.numel(), dtype=torch.float64).reshape(gathered.shape)
    return (torch.tanh(gathered @ gathered.T).sum() + (weights * gathered).sum()) * (rank + 1)


def main(rank: int, size: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    team = Team.of_process_group()
    found: dict[str, Tensor] = {"place": torch.tensor([team.rank, team.size])}

    x = rows_of(rank).requires_grad_()
    gathered = team.gather(x)
    loss_of(rank, gathered).backward()
    assert x.grad is not None
    found |= {"gathered": gathered.detach(), "gradient": x.grad}
    found["some_empty"] = team.gather(torch.full((0 if rank == 0 else 2, 1), rank))

    everywhere, only_last, nowhere, double = (nn.Parameter(torch.zeros(2, 3)) for _ in range(4))
    double.data = double.data.double()
    everywhere.grad = torch.full((2, 3), float(rank + 1))
    double.grad = torch.full((2, 3), 1e-12 * (rank + 1), dtype=torch.float64)  # must not share a float32 buffer
    if rank == size - 1:
        only_last.grad = torch.full((2, 3), 7.0)
    team.sum_gradients([everywhere, only_last, nowhere, double])
    assert everywhere.grad is not None
    assert only_last.grad is not None
    assert double.grad is not None
    found |= {"everywhere": everywhere.grad, "only_last": only_last.grad, "double": double.grad}
    found["nowhere_is_none"] = torch.tensor(nowhere.grad is None)

    values = torch.tensor([1.0, float(rank)], requires_grad=True)
    found["total"] = team.total(values)
    found["total_has_gradient"] = torch.tensor(found["total"].requires_grad)
    found["values_kept"] = values.detach()
    found["any"] = torch.tensor([team.any(False), team.any(rank == size - 1), team.any(True)])

    layer = nn.Linear(4, 2)  # a transposed view is not contiguous in memory, a parameter wants no graph
    with torch.no_grad():
        layer.weight.fill_(rank)
    turned = torch.arange(6).reshape(2, 3).T + 100 * rank
    team.broadcast(layer.weight)
    team.broadcast(turned, source=1)
    team.barrier()
    found |= {"broadcast": layer.weight.detach(), "broadcast_turned": turned}

    np.savez(folder / f"{rank}.npz", **{name: value.numpy() for name, value in found.items()})
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
