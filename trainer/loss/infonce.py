"""InfoNCE with weighted negatives of both views, by tiles: every such loss is one setting of it (methods 1.5).

    ℓ_i = −log Num_i + log Den_i,   Den_i = Σ_j W_ij e^{cos(u_i, v_j)/τ} + Σ_j W'_ij e^{cos(u_i, u_j)/τ}

One sweep serves both directions: a tile of u vᵀ adds to the sums of its rows (anchors u_i, weights W[rows, columns])
and to those of its columns (anchors v_j, weights W[columns, rows]). Of u uᵀ and v vᵀ, which are symmetric, only tiles
on and above the diagonal are computed. Backward sweeps again, as in trainer.loss.tiled: 2 N² d multiplications forward
and 6 N² d backward (4 where tiles are kept), in memory for a few tiles and vectors of length N.

With a team, rows are gathered and pairs of blocks are dealt to the workers in turn; each gets the sums of its own
anchors. Weights are then numbered as the gathered rows are: all of worker 0, then all of worker 1, …
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import normalize

from trainer.distributed.team import Team
from trainer.loss.tile_weights import TileWeights
from trainer.loss.tiled import EXPONENT_LIMIT, Tile, TileMemory, add_products, tiles
from trainer.nn.products import product
from trainer.spec.training import DEFAULT_TILE


class PairWeights(NamedTuple):
    """What anchors of one view give to their negatives; None is weight 1. The defaults are those of GRACE.

    Diagonals stand here and nowhere else: the weights' own diagonals are not looked at.
    """

    inter: TileWeights | None = None  # W, of nodes in the other view
    intra: TileWeights | None = None  # W', of nodes in the same view
    inter_self: float = 1.0  # W_ii: 1 has the positive in the denominator once
    intra_self: float = 0.0  # W'_ii


class Logits(NamedTuple):
    """For each node, [n]; a loss is `log_den − positive`, or whatever numerator a method has."""

    log_den_u: Tensor  # log Den of anchor u_i
    log_den_v: Tensor  # log Den of anchor v_i
    positive: Tensor  # cos(u_i, v_i)/τ


def infonce_loss(
    u: Tensor, v: Tensor, *, tau: float, weights: PairWeights | None = None, back: PairWeights | None = None,
    tile: int | None = None, memory: TileMemory | None = None, team: Team | None = None,
) -> Tensor:  # fmt: skip
    """Mean of ℓ_i over anchors and both directions with Num_i = s_ii: GRACE, unless weights are given.

    Arguments and errors are those of `infonce_terms`. With a team, the value is this worker's share of the mean.

    Example:
        >>> u, v = torch.randn(2, 100, 16)
        >>> infonce_loss(u, v, tau=0.5).shape
        torch.Size([])
    """
    terms = infonce_terms(u, v, tau=tau, weights=weights, back=back, tile=tile, memory=memory, team=team)
    anchors = int((team or Team.solo()).total(torch.tensor(len(u))))
    return ((terms.log_den_u + terms.log_den_v) / 2 - terms.positive).sum() / anchors


def infonce_terms(
    u: Tensor, v: Tensor, *, tau: float, weights: PairWeights | None = None, back: PairWeights | None = None,
    intra: bool = True, tile: int | None = None, memory: TileMemory | None = None, team: Team | None = None,
) -> Logits:  # fmt: skip
    """Both directions' denominators and the positives, differentiable once in u and v.

    Args:
        u, v: embeddings of the two views, [n, d], row i of both belonging to the same node; normalised here.
        tau: temperature.
        weights: of the negatives of anchors u_i, None for 1 everywhere (GRACE).
        back: of the negatives of anchors v_i, None for the same: W[j, i] is what v_j gives to u_i, untransposed.
        intra: false leaves out the nodes of the anchor's own view.
        tile: side of the tiles; None for one that stays in cache.
        memory: room to keep tiles from forward to backward, which saves a third of backward.
        team: rows are this worker's and negatives those of all workers.

    Raises:
        ValueError: shapes that differ, or τ too small for the dtype.
    """
    if u.ndim != 2 or u.shape != v.shape or not len(u):
        raise ValueError(f"u and v must have equal shapes [n, d], got {tuple(u.shape)}, {tuple(v.shape)}")
    weights = weights or PairWeights()
    back = back or weights
    a, b = _scaled(u, tau), _scaled(v, tau)
    team = team or Team.solo()
    all_a, all_b = a, b
    if team.size > 1:
        all_a, all_b = (part.contiguous() for part in team.gather(torch.cat([a, b], 1)).chunk(2, 1))
    kinds = [_Kind("uv", (0, 1), (weights.inter, back.inter), (weights.inter_self, back.inter_self))]
    if intra:
        for name, view, given in (("uu", 0, weights), ("vv", 1, back)):
            kinds.append(_Kind(name, (view, view), (given.intra, given.intra), (given.intra_self, given.intra_self)))
    log_den = _log_sums(all_a, all_b, kinds, len(u), tile, memory, team)
    return Logits(log_den[0], log_den[1], (a * b).sum(1))


def intra_log_sums(
    z: Tensor, *, tau: float, weights: TileWeights | None = None, self_weight: float = 1.0, tile: int | None = None,
    memory: TileMemory | None = None, team: Team | None = None,
) -> Tensor:  # fmt: skip
    """log Σ_j W_ij e^{cos(z_i, z_j)/τ} of a single view, [n].  W_ii is `self_weight`; see `infonce_terms`."""
    if z.ndim != 2 or not len(z):
        raise ValueError(f"z must be [n, d], got {tuple(z.shape)}")
    team = team or Team.solo()
    a = team.gather(_scaled(z, tau))
    kinds = [_Kind("uu", (0, 0), (weights, weights), (self_weight, self_weight))]
    return _log_sums(a, a[:0], kinds, len(z), tile, memory, team)[0]


def _scaled(u: Tensor, tau: float) -> Tensor:
    """Rows of which each product is a cosine divided by τ."""
    limit = EXPONENT_LIMIT.get(u.dtype)
    if limit is None:
        raise ValueError(f"{u.dtype} is not supported; use float32 or float64")
    if not tau > 1 / limit:
        raise ValueError(f"tau is {tau}; it must be above {1 / limit:.3g}, or exp(1/τ) leaves {u.dtype}")
    return normalize(u) / tau**0.5


class _Kind(NamedTuple):
    """Pairs of one kind: rows of one view against rows of the same or the other. Two of each: for rows, for columns."""

    name: str
    views: tuple[int, int]
    weights: tuple[TileWeights | None, TileWeights | None]
    own: tuple[float, float]  # weights of the diagonal

    @property
    def mirrored(self) -> bool:
        """Whether tiles below the diagonal are those above it, transposed."""
        return self.views[0] == self.views[1]


def _log_sums(
    a: Tensor, b: Tensor, kinds: list[_Kind], own: int, tile: int | None, memory: TileMemory | None, team: Team
) -> Tensor:
    """log of the sums over all kinds for this worker's rows, [2, own]: of anchors in a, and in b."""
    if tile is not None and tile < 1:
        raise ValueError(f"tile is {tile}; it must be at least 1")
    logs: Tensor = _Sums.apply(a, b, kinds, tile or DEFAULT_TILE, memory or TileMemory(0), (team.rank, team.size))
    if team.size == 1:
        return logs
    mine = team.own_rows(own)
    return team.gather(logs.unsqueeze(0))[..., mine].logsumexp(0)


class _Sums(torch.autograd.Function):
    """Sums in forward, gradients by a second sweep in backward; saves its inputs and vectors of length N only."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, kinds: list[_Kind], side: int, memory: TileMemory, share: tuple[int, int]
    ) -> Tensor:
        memory.generation += 1
        sums = a.new_zeros(2, len(a))
        sweep = _Sweep((a, b), kinds, side, memory, share)
        for kind, at in sweep.tiles():
            e = sweep.exp(kind, at)
            row, column = sweep.weights(kind, at)
            weighted = e if row is None else torch.mul(e, row, out=sweep.scratch(at, 0))
            sums[kind.views[0], at.rows] += weighted.sum(1)
            if kind.mirrored and at.i == at.j:
                continue
            if column is not row:
                weighted = e if column is None else torch.mul(e, column, out=sweep.scratch(at, 0))
            sums[kind.views[1], at.columns] += weighted.sum(0)
        ctx.save_for_backward(a, b, sums)
        ctx.kinds, ctx.side, ctx.memory, ctx.share = kinds, side, memory, share
        ctx.generation, ctx.kept = memory.generation, sweep.kept
        return sums.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        a, b, sums = ctx.saved_tensors
        still_ours = ctx.memory.generation == ctx.generation
        memory, kept = (ctx.memory, ctx.kept) if still_ours else (TileMemory(0), set())
        sweep = _Sweep((a, b), ctx.kinds, ctx.side, memory, ctx.share, kept)
        x = torch.where(sums > 0, gradient / sums, 0)  # an anchor without negatives of this kind has no gradient
        grads = [
            torch.zeros_like(z) if wanted else None for z, wanted in zip((a, b), ctx.needs_input_grad, strict=False)
        ]
        for kind, at in sweep.tiles():
            first, second = kind.views
            if grads[first] is None and grads[second] is None:
                continue
            d = _tile_gradient(x[first, at.rows], x[second, at.columns], kind, at, sweep)
            below = None if kind.mirrored and at.i == at.j else grads[second]
            add_products(grads[first], below, d, (a, b)[first], (a, b)[second], at)
        return *grads, None, None, None, None


def _tile_gradient(x_row: Tensor, x_column: Tensor, kind: _Kind, at: Tile, sweep: _Sweep) -> Tensor:
    """d(sums)/dz over a tile, E_ij (W_ij x_i + W_ji x_j); on a mirrored diagonal that is the gradient of both sides."""
    row, column = sweep.weights(kind, at)
    out = sweep.scratch(at, 0)
    if row is column or (row is None and column is None):
        torch.add(x_row[:, None], x_column, out=out)
        if row is not None:
            out.mul_(row)
    else:
        out.copy_(x_row[:, None].expand_as(out)) if row is None else torch.mul(row, x_row[:, None], out=out)
        out.add_(x_column) if column is None else out.addcmul_(column, x_column)
    return out.mul_(sweep.exp(kind, at))


class _Sweep:
    """This worker's tiles of exp(z), computed into reused buffers or kept until backward, and their weights."""

    def __init__(
        self, views: tuple[Tensor, Tensor], kinds: list[_Kind], side: int, memory: TileMemory,
        share: tuple[int, int], kept: set[tuple[str, Tile]] | None = None,
    ):  # fmt: skip
        self.views, self.kinds, self.side, self.memory = views, kinds, side, memory
        self.share, self.kept = share, kept or set()
        self._flat = [views[0].new_empty(min(side, len(views[0])) ** 2) for _ in range(2)]
        self._looked_up: dict[tuple[int, int, int], Tensor | None] = {}

    def tiles(self) -> Iterator[tuple[_Kind, Tile]]:
        """Every `size`-th pair of blocks, so that all workers have as much to do whatever their numbers of rows.

        All that concerns two blocks comes together: weights that serve several kinds are looked up once.
        """
        rank, size = self.share
        n = len(self.views[0])
        above = (at for at in tiles(n, n, self.side) if at.i <= at.j)
        for at in islice(above, rank, None, size):
            self._looked_up.clear()
            for kind in self.kinds:
                yield kind, at
                if not kind.mirrored and at.i < at.j:
                    yield kind, Tile(at.j, at.i, at.width, at.height)

    def exp(self, kind: _Kind, at: Tile) -> Tensor:
        first, second = (self.views[view] for view in kind.views)
        out = self.memory.slot(kind.name, at, first)
        if out is None:
            out = self.scratch(at, 1)
        elif (kind.name, at) in self.kept:
            return out
        else:
            self.kept.add((kind.name, at))
        return torch.exp(product(first[at.rows], second[at.columns].T, out), out=out)

    def weights(self, kind: _Kind, at: Tile) -> tuple[Tensor | None, Tensor | None]:
        """What rows and what columns give, both [height, width]; the same object where they are equal."""
        (of_rows, of_columns), (own_row, own_column) = kind.weights, kind.own
        row = self._with_own(of_rows, at.rows, at.columns, own_row)
        if of_rows is of_columns and own_row == own_column and (of_rows is None or of_rows.symmetric):
            return row, row
        column = self._with_own(of_columns, at.columns, at.rows, own_column)
        return row, None if column is None else column.T

    def _with_own(self, weights: TileWeights | None, rows: slice, columns: slice, own: float) -> Tensor | None:
        part = None if weights is None else self._look_up(weights, rows, columns)
        if rows.start != columns.start or (part is None and own == 1):
            return part
        ones = self.views[0].new_ones
        part = ones(rows.stop - rows.start, columns.stop - columns.start) if part is None else part.clone()
        return part.fill_diagonal_(own)

    def _look_up(self, weights: TileWeights, rows: slice, columns: slice) -> Tensor | None:
        key = (id(weights), rows.start, columns.start)
        if key not in self._looked_up:
            mirror = (id(weights), columns.start, rows.start)
            if weights.symmetric and mirror in self._looked_up:
                part = self._looked_up[mirror]
                part = None if part is None else part.T
            else:
                part = weights.tile(rows, columns)
                part = None if part is None else part.to(self.views[0])
            self._looked_up[key] = part
        return self._looked_up[key]

    def scratch(self, at: Tile, which: int) -> Tensor:
        return self._flat[which][: at.height * at.width].view(at.height, at.width)
