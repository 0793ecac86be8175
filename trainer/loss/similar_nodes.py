"""Which nodes are alike: cosines of rows in blocks, the K nearest of each node, and those as a mask (PHASES).

Nothing N×N is held: a block of rows against all others at a time, of which a table of K column numbers stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from trainer.data.features import csr
from trainer.loss.tile_weights import RankedMask, SparseWeights, TileWeights
from trainer.nn.sparse import row_of_entry, rows_of

BLOCK = 1 << 24  # entries of a block of rows: 64 MB in float32


class Cosines:
    """cos(x_i, x_j) by blocks of rows.  x: [N, F], dense or CSR; a row of zeros is like nobody."""

    def __init__(self, x: Tensor):
        if x.layout == torch.sparse_csr:
            row = row_of_entry(x.crow_indices())
            square = torch.zeros(len(x), dtype=x.dtype).index_add_(0, row, x.values().square())
            values = x.values() / square.sqrt().clamp_min(1e-12)[row]
            self.unit = csr(x.crow_indices(), x.col_indices(), values, (x.shape[0], x.shape[1]))
        else:
            self.unit = normalize(x)
        self.nodes = len(x)

    def of(self, rows: slice) -> Tensor:
        """[rows, N]."""
        if self.unit.layout != torch.sparse_csr:
            return self.unit[rows] @ self.unit.T
        part = rows_of(self.unit, torch.arange(rows.start, rows.stop)).to_dense()
        return (self.unit @ part.T).T

    def mean(self) -> float:
        """Over all N² pairs."""
        ones = torch.ones(1, self.nodes, dtype=self.unit.dtype)
        total = ones @ self.unit if self.unit.layout != torch.sparse_csr else self._column_sums()
        return float(total.double().square().sum()) / self.nodes**2

    def _column_sums(self) -> Tensor:
        sums = torch.zeros(self.unit.shape[1], dtype=self.unit.dtype)
        return sums.index_add_(0, self.unit.col_indices(), self.unit.values())


def row_blocks(num_nodes: int) -> Iterator[slice]:
    """Rows of N×N by `BLOCK` entries."""
    height = max(1, BLOCK // num_nodes)
    for start in range(0, num_nodes, height):
        yield slice(start, min(start + height, num_nodes))


@torch.no_grad()
def most_similar(x: Tensor, k: int) -> Tensor:
    """The k other nodes of largest cosine with each, most similar first.  x: [N, F] -> [N, k] int32, k < N."""
    cosines = Cosines(x)
    table = torch.empty(cosines.nodes, k, dtype=torch.int32)
    for rows in row_blocks(cosines.nodes):
        block = cosines.of(rows)
        block[torch.arange(len(block)), torch.arange(rows.start, rows.stop)] = -torch.inf
        table[rows] = block.topk(k, dim=1).indices.int().cpu()
    return table


class SimilarNodes(nn.Module):
    """An index table [N, K], and the mask over its first columns.

    keep: checkpoints hold the table, as they must where training changes it.
    """

    table: Tensor

    def __init__(self, table: Tensor, *, keep: bool):
        super().__init__()
        self.register_buffer("table", table, persistent=keep)
        self._sorted: RankedMask | None = None

    def refresh(self, table: Tensor) -> None:
        """Put in another table of the same shape."""
        self.table.copy_(table)
        self._sorted = None

    def mask(self, nodes: Tensor, length: int) -> TileWeights | None:
        """0 at the first `length` of each node's similar nodes, as far as they are among `nodes`, and 1 elsewhere."""
        if not length:
            return None
        n = len(self.table)
        if torch.equal(nodes, torch.arange(n, device=nodes.device)):
            if self._sorted is None:
                self._sorted = RankedMask(self.table.long(), length)
            self._sorted.length = length
            return self._sorted
        place = torch.full((n,), -1, device=self.table.device)
        place[nodes] = torch.arange(len(nodes), device=place.device)
        columns = place[self.table[nodes, :length].long()]
        row, rank = (columns >= 0).nonzero(as_tuple=True)
        return SparseWeights(torch.stack([row, columns[row, rank]]), len(nodes))

    def _load_from_state_dict(self, *arguments: object) -> None:
        super()._load_from_state_dict(*arguments)
        self._sorted = None
