"""One worker of a team, as a script: `infonce_member.py RANK SIZE FOLDER`, meeting the others over loopback with gloo.

It leaves its share of the losses and the gradients of its rows in FOLDER/RANK.npz.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.distributed.teams import leave
from trainer.distributed.team import Team
from trainer.loss.infonce import PairWeights, infonce_loss, intra_log_sums
from trainer.loss.tile_weights import ComputedWeights, weighted_sum

TILE = 4


def views_of(rank: int) -> tuple[Tensor, Tensor]:
    """Worker `rank` holds 5 + 4 rank rows, so no two hold equally many."""
    generator = torch.Generator().manual_seed(rank)
    u, v = (torch.randn(5 + 4 * rank, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    return u.requires_grad_(), v.requires_grad_()


def losses(u: Tensor, v: Tensor, team: Team) -> dict[str, Tensor]:
    """This worker's share of each loss; weights go by the place of a row among those of all workers."""
    uneven = ComputedWeights(lambda i, j: matrix()[i, j])
    weights = PairWeights(uneven, None, inter_self=2.0)
    sums = intra_log_sums(u, tau=0.5, weights=uneven, tile=TILE, team=team)
    return {
        "grace": infonce_loss(u, v, tau=0.5, tile=TILE, team=team),
        "weighted": infonce_loss(u, v, tau=0.5, weights=weights, tile=TILE, team=team),
        "intra": (sums * u.detach()[:, 0]).sum(),
        "product": (weighted_sum(uneven, u, tile=TILE, team=team) * v.detach()).sum(),
    }


def matrix() -> Tensor:
    return torch.rand(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def main(rank: int, size: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    u, v = views_of(rank)
    found = {}
    for name, loss in losses(u, v, Team.of_process_group()).items():
        grads = torch.autograd.grad(loss, [u, v], allow_unused=True)
        found[name] = loss.detach()
        found |= {f"{name}_{which}": grad for which, grad in zip("uv", grads, strict=True) if grad is not None}
    np.savez(folder / f"{rank}.npz", **{name: value.numpy() for name, value in found.items()})
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
