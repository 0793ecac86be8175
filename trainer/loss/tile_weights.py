"""Constant weights of pairs, given tile by tile: W[rows, columns] ≥ 0, where 0 leaves a pair out.

Losses of trainer.loss.infonce look weights up in forward and again in backward, so that no N×N array is ever held. The
ready-made ones are sparse (a value at some pairs, 1 at all others) or computed from whatever a method keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.distributed.team import Team
from trainer.loss.tiled import tiles
from trainer.nn.products import add_product
from trainer.spec.training import DEFAULT_TILE


class TileWeights(Protocol):
    """Weights that anchors (rows) give to others (columns). They are constants: no gradient reaches them."""

    @property
    def symmetric(self) -> bool:
        """Whether W = Wᵀ, which saves the second look-up."""

    def tile(self, rows: slice, columns: slice) -> Tensor | None:
        """W[rows, columns], of any dtype and never written to, or None where all of it is 1."""


@dataclass(frozen=True, eq=False)
class ComputedWeights:
    """Rebuilt from a function of (rows, columns) whenever they are needed.

    Example:
        >>> distance = torch.rand(50)
        >>> ComputedWeights(lambda rows, columns: torch.outer(distance[rows], distance[columns]), symmetric=True)
    """

    function: Callable[[slice, slice], Tensor | None]
    symmetric: bool = False

    @torch.no_grad()
    def tile(self, rows: slice, columns: slice) -> Tensor | None:
        return self.function(rows, columns)


class SparseWeights:
    """A value at each listed pair and 1 everywhere else; values None for 0, which leaves the listed pairs out.

    edge_index: [2, E], rows (anchors) and columns; values: [E]. Whether they are symmetric is found out.

    Raises:
        ValueError: a pair outside of N×N, or one listed twice with values of its own.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int, values: Tensor | None = None):
        self._pairs = _SortedPairs(edge_index, num_nodes)
        transposed = _SortedPairs(edge_index.flip(0), num_nodes)
        self.symmetric = torch.equal(self._pairs.keys, transposed.keys)
        if values is None:
            self._values = torch.zeros(len(self._pairs.keys), device=edge_index.device)
            return
        if bool((self._pairs.keys[1:] == self._pairs.keys[:-1]).any()):
            raise ValueError("a pair is listed twice with values of its own; coalesce the pairs first")
        self._values = values.detach()[self._pairs.order]
        self.symmetric &= torch.equal(self._values, values.detach()[transposed.order])

    @classmethod
    def from_csr(cls, matrix: Tensor) -> SparseWeights:
        """The stored values of a sparse N×N tensor in CSR form, and 1 elsewhere."""
        counts = matrix.crow_indices().diff()
        rows = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        return cls(torch.stack([rows, matrix.col_indices()]), len(counts), matrix.values())

    def tile(self, rows: slice, columns: slice) -> Tensor | None:
        places, entries = self._pairs.within(rows, columns)
        return _ones_but(places, self._values[entries], rows, columns)


class RankedMask:
    """0 at the first `length` columns of each row of an index table, 1 elsewhere (PHASES).

    table: [N, K], columns of each anchor in the order in which they are masked. Sorted once; `length` may then change
    from epoch to epoch at no cost, but not between a forward and its backward.
    """

    symmetric = False

    def __init__(self, table: Tensor, length: int):
        n, most = table.shape
        rows = torch.arange(n, device=table.device).repeat_interleave(most)
        self.length = length
        self._pairs = _SortedPairs(torch.stack([rows, table.flatten()]), n)
        self._ranks = (self._pairs.order % most).to(torch.int32)

    def tile(self, rows: slice, columns: slice) -> Tensor | None:
        if self.length <= 0:
            return None
        places, entries = self._pairs.within(rows, columns)
        places = places[self._ranks[entries] < self.length]
        return _ones_but(places, torch.zeros(len(places), device=places.device), rows, columns)


class _SortedPairs:
    """Pairs of an N×N matrix in the order of rows and columns, so that those of a tile are found by bisection."""

    def __init__(self, edge_index: Tensor, num_nodes: int):
        if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
            low, high = edge_index.aminmax()
            raise ValueError(f"pairs must lie between 0 and {num_nodes - 1}, got {int(low)} to {int(high)}")
        self._n = num_nodes
        self.keys, self.order = (edge_index[0].long() * num_nodes + edge_index[1]).sort()

    def within(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Places in the flattened tile, and numbers in sorted order, of the pairs that lie in it."""
        of_rows = torch.arange(rows.start, rows.stop, device=self.keys.device)
        start = torch.searchsorted(self.keys, of_rows * self._n + columns.start)
        counts = torch.searchsorted(self.keys, of_rows * self._n + columns.stop) - start
        row = torch.arange(len(of_rows), device=start.device).repeat_interleave(counts)
        entries = torch.arange(len(row), device=start.device) + (start - counts.cumsum(0) + counts)[row]
        column = self.keys[entries] - of_rows[row] * self._n - columns.start
        return row * (columns.stop - columns.start) + column, entries


def _ones_but(places: Tensor, values: Tensor, rows: slice, columns: slice) -> Tensor | None:
    """A tile of ones with other values at some places of it, or None if there are no such places."""
    if not len(places):
        return None
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    block = values.new_ones(shape)
    block.view(-1)[places] = values
    return block


@torch.no_grad()
def row_sums(
    weights: TileWeights, num_nodes: int, like: Tensor, *, with_self: bool = False, tile: int | None = None
) -> Tensor:
    """Σ_j W_ij over j ≠ i (or all j), [N], in the dtype and on the device of `like`: what scales rows to a mean."""
    sums = like.new_zeros(num_nodes)
    for at in tiles(num_nodes, num_nodes, tile or DEFAULT_TILE):
        part = weights.tile(at.rows, at.columns)
        part = like.new_ones(at.height, at.width) if part is None else part
        if at.i == at.j and not with_self:
            part = part.clone().fill_diagonal_(0)
        sums[at.rows] += part.sum(1)
    return sums


def weighted_sum(weights: TileWeights, x: Tensor, *, tile: int | None = None, team: Team | None = None) -> Tensor:
    """Σ_j W_ij x_j for every i, differentiable in x; W is rebuilt in backward.  x: [n, d] -> [n, d].

    With a team, x and the result are this worker's rows, and j runs over the rows of all workers.
    """
    team = team or Team.solo()
    own = team.own_rows(len(x))
    summed: Tensor = _WeightedSum.apply(team.gather(x), weights, own, tile or DEFAULT_TILE)
    return summed


class _WeightedSum(torch.autograd.Function):
    """Saves nothing: the gradient is Wᵀ times that of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: TileWeights, own: slice, side: int) -> Tensor:
        ctx.weights, ctx.own, ctx.side, ctx.n = weights, own, side, len(x)
        out = x.new_zeros(own.stop - own.start, x.shape[1])
        for rows, columns, part in _blocks(weights, own, len(x), side, x):
            add_product(out[rows], part, x[columns], exact=True)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        gradient = gradient.contiguous()
        dx = gradient.new_zeros(ctx.n, gradient.shape[1])
        for rows, columns, part in _blocks(ctx.weights, ctx.own, ctx.n, ctx.side, gradient):
            add_product(dx[columns], part.T, gradient[rows], exact=True)
        return dx, None, None, None


def _blocks(weights: TileWeights, own: slice, n: int, side: int, like: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """(rows within `own`, columns, weights) of every tile."""
    for at in tiles(own.stop - own.start, n, side):
        rows = slice(own.start + at.i, own.start + at.i + at.height)
        part = weights.tile(rows, at.columns)
        yield at.rows, at.columns, like.new_ones(at.height, at.width) if part is None else part.to(like)
