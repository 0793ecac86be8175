"""Every node's embedding in an epoch's views, as tables: what methods fit mixtures to or search for similar nodes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainer.distributed.team import Team
from trainer.encoding.pair import Encoding


@torch.no_grad()
def encode_all(
    encoding: Encoding, team: Team, num_nodes: int, epoch: int, project: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Both views of an epoch, in node order: two of [N, d], equal on all workers.

    Batch by batch where that is how the run encodes. project: what each batch's embeddings go through first.
    """
    tables: list[Tensor] = []
    for pair in encoding.pairs(epoch):
        found = [part if project is None else project(part) for part in pair.encode()]
        if not tables:
            tables = [part.new_zeros(num_nodes, part.shape[1]) for part in found]
        nodes = team.gather(pair.nodes)
        for table, part in zip(tables, found, strict=True):
            table[nodes] = team.gather(part)
    first, second = tables
    return first, second
