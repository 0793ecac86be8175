"""Read a table of embeddings that may be larger than memory: by pieces, or the rows of a sample.

Each read copies a piece of a few megabytes and gives the pages behind it back at once (trainer/files/mapped.py). Rows
are gathered in the order of the file: it is swept once, whatever order they are asked for in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from trainer.files.mapped import PIECE_BYTES, release


@dataclass(frozen=True, eq=False)
class Rows:
    """A table [N, d] that is never copied whole; its rows come as `dtype` on the CPU. `Rows.of` makes one."""

    table: np.ndarray | Tensor
    dtype: torch.dtype
    piece: int  # rows between two releases; the table is cut at its multiples

    @classmethod
    def of(cls, z: np.ndarray | Tensor | Rows, dtype: torch.dtype | None = None) -> Rows:
        """Rows of an array, a memory map or a tensor, as float32 unless the table is float64 or `dtype` says so.

        Raises:
            ValueError: z does not have two dimensions.
        """
        if isinstance(z, Rows):
            return z if dtype is None else replace(z, dtype=dtype)
        if z.ndim != 2:
            raise ValueError(f"a table has two dimensions, not {z.ndim}")
        if dtype is None:
            dtype = torch.float64 if z.dtype in (torch.float64, np.float64) else torch.float32
        return cls(z, dtype, max(1, PIECE_BYTES // (4 * max(1, z.shape[1]))))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def dim(self) -> int:
        return int(self.table.shape[1])

    def pieces(self) -> Iterator[Tensor]:
        """All rows in order, [at most `piece`, d] at a time."""
        for start in range(0, len(self), self.piece):
            yield self._read(slice(start, start + self.piece))

    def gathered(self, nodes: Tensor, *, unit: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows of some nodes, a piece of the table at a time: (positions in `nodes` [n], their rows [n, d]).

        nodes: [k] int64 in any order; unit: each row divided by its length (a zero row stays zero).

        Raises:
            IndexError: a node is beyond the table.
        """
        nodes = nodes.cpu()
        ordered, order = nodes.sort()
        cuts = torch.searchsorted(ordered, torch.arange(0, len(self), self.piece)[1:])
        for where in torch.tensor_split(order, cuts):
            if len(where):
                rows = self._read(nodes[where])
                yield where, normalize(rows, dim=1) if unit else rows

    def take(self, nodes: Tensor, *, unit: bool = False) -> Tensor:
        """The rows of some nodes, [k, d], in the order of `nodes`. Memory: theirs and that of one piece."""
        taken = torch.empty(len(nodes), self.dim, dtype=self.dtype)
        for where, rows in self.gathered(nodes, unit=unit):
            taken[where] = rows
        return taken

    def _read(self, where: slice | Tensor) -> Tensor:
        if isinstance(self.table, Tensor):
            chosen = where.to(self.table.device) if isinstance(where, Tensor) else where
            return self.table[chosen].detach().to("cpu", self.dtype)
        copied = np.array(self.table[where.numpy() if isinstance(where, Tensor) else where], order="C")
        release(self.table)
        return torch.from_numpy(copied).to(self.dtype)


def sample(nodes: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """`nodes` as they are if there are at most `most` of them, else that many at random, in the order they have."""
    if len(nodes) <= most:
        return nodes
    chosen = torch.randperm(len(nodes), generator=generator)[:most].sort().values
    return nodes[chosen.to(nodes.device)]
