"""Log-sum-exps over pairs of rows and columns that are never stored (design section 3): the one primitive of the loss.

One sweep over square tiles of E = exp(h gᵀ) and X = exp(h gᵀ + p vᵀ) yields row *and* column sums, so both directions
of the loss share each matrix product. Backward sweeps again: 2 products forward, at most 6 backward, and nothing larger
than a tile in memory unless a `TileMemory` with room is given. Rows and columns may differ in number: anchors of a
batch against the batch, a bank, another worker's nodes, or all N.

Similarities are bounded by the norms of their rows, so no running maximum is needed: while |s| + |z| < 43.5 neither
exp(s + z) nor its reciprocal leaves float32, and what is beyond is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.nn.products import add_product, product
from trainer.spec.training import DEFAULT_TILE

EXPONENT_LIMIT = {torch.float32: 43.5, torch.float64: 350.0}


class LogSums(NamedTuple):
    """For each anchor, over all it is compared with; `plain` carries no gradient unless weights are uniform."""

    weighted: Tensor  # A: log Σ exp(s + z)
    mass: Tensor  # B: log Σ exp(s)
    plain: Tensor  # log Σ exp(z), or NaN where it was not asked for


class TileMemory:
    """Room for tiles that would otherwise be recomputed; buffers are reused from call to call.

    Tiles of exp(z) stay known until `forget_z`: Algorithm 1 takes several metric steps on one pair of views. Tiles of
    exp(s) only bridge the gap between a forward and its backward. Values are the same with any amount of room.
    """

    def __init__(self, megabytes: int):
        self._room = megabytes * 2**20
        self._buffers: dict[tuple[str, int, int], Tensor] = {}
        self._known_z: set[tuple[int, int]] = set()
        self.generation = 0  # changes whenever kept tiles may no longer be those of an earlier forward

    def forget_z(self) -> None:
        """Call when u or v changes."""
        self._known_z.clear()
        self.generation += 1

    def reserve_z(self, n: int, m: int, side: int, like: Tensor) -> None:
        """Give room to exp(z) before exp(s): it serves every step of an epoch, exp(s) only one."""
        for tile in tiles(n, m, side):
            if self.slot("z", tile, like) is None:
                return

    def known_z(self, tile: Tile) -> Tensor | None:
        return self._buffers["z", tile.i, tile.j] if (tile.i, tile.j) in self._known_z else None

    def remember_z(self, tile: Tile) -> None:
        if ("z", tile.i, tile.j) in self._buffers:
            self._known_z.add((tile.i, tile.j))

    def slot(self, kind: str, tile: Tile, like: Tensor) -> Tensor | None:
        """A buffer that outlives the sweep, or None when there is no room."""
        key = (kind, tile.i, tile.j)
        kept = self._buffers.get(key)
        if kept is None or kept.shape != (tile.height, tile.width):
            if kept is not None:  # of an earlier batch: it must not stay behind and pass for this tile
                self._room += kept.numel() * kept.element_size()
                del self._buffers[key]
            size = tile.height * tile.width * like.element_size()
            if size > self._room:
                return None
            self._room -= size
            kept = self._buffers[key] = like.new_empty(tile.height, tile.width)
        return kept


class Tile(NamedTuple):
    """Rows i … i+height against columns j … j+width."""

    i: int
    j: int
    height: int
    width: int

    @property
    def rows(self) -> slice:
        return slice(self.i, self.i + self.height)

    @property
    def columns(self) -> slice:
        return slice(self.j, self.j + self.width)


def tiles(n: int, m: int, side: int) -> Iterator[Tile]:
    """Squares of the given side covering n rows and m columns, ragged at the end."""
    for i in range(0, n, side):
        for j in range(0, m, side):
            yield Tile(i, j, min(side, n - i), min(side, m - j))


def pair_sums(
    p: Tensor,
    v: Tensor,
    h: Tensor | None,
    g: Tensor | None,
    *,
    tile: int | None = None,
    memory: TileMemory | None = None,
    both: bool = True,
    with_plain: bool = True,
) -> tuple[LogSums, LogSums | None]:
    """Sums for z = p·v and s = h·g (h = g = None: s = 0), over columns for each row and over rows for each column.

    p: [n, d], v: [m, d], h: [n, k], g: [m, k]; rows of any norm whose products stay within the exponent limit.
    both: false leaves out the columns' sums.

    Raises:
        ValueError: shapes that differ, or similarities too large to exponentiate.
    """
    _check(p, v, h, g)
    if tile is not None and tile < 1:
        raise ValueError(f"tile is {tile}; it must be at least 1")
    sums = _PairSums.apply(p, v, h, g, tile or DEFAULT_TILE, memory, both, with_plain)
    rows, columns = LogSums(*sums[:3]), LogSums(*sums[3:])
    return rows, columns if both else None


def _check(p: Tensor, v: Tensor, h: Tensor | None, g: Tensor | None) -> None:
    if p.ndim != 2 or v.ndim != 2 or p.shape[1] != v.shape[1] or not len(p) or not len(v):
        raise ValueError(f"u and v must be [n, d] and [m, d], got {tuple(p.shape)}, {tuple(v.shape)}")
    if (h is None) != (g is None):
        raise ValueError("give both h and g, or neither for uniform weights")
    largest = _largest(p, v)
    if h is not None and g is not None:
        if h.shape[1] != g.shape[1] or (len(h), len(g)) != (len(p), len(v)):
            raise ValueError(f"h and g must be [{len(p)}, k] and [{len(v)}, k], got {tuple(h.shape)}, {tuple(g.shape)}")
        largest += _largest(h, g)
    limit = EXPONENT_LIMIT.get(p.dtype)
    if limit is None:
        raise ValueError(f"{p.dtype} is not supported; use float32 or float64")
    if largest >= limit:  # a NaN passes, and shows in the loss
        raise ValueError(
            f"|s| + |z|/τ may reach {largest:.1f}; exp of it and of its negative must fit {p.dtype} (limit {limit}): "
            "raise the temperature, lower the metric's scale, or pass unit rows"
        )


def _largest(a: Tensor, b: Tensor) -> float:
    """Cauchy-Schwarz bound on |a_i · b_j|."""
    with torch.no_grad():
        return float(torch.linalg.vector_norm(a, dim=1).max() * torch.linalg.vector_norm(b, dim=1).max())


class _PairSums(torch.autograd.Function):
    """Sums in forward, gradients by a second sweep in backward; saves its inputs and vectors of length n or m only."""

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, v: Tensor, h: Tensor | None, g: Tensor | None, side: int,
        memory: TileMemory | None, both: bool, with_plain: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        n, m = len(p), len(v)
        memory = memory or TileMemory(0)
        memory.generation += 1
        memory.reserve_z(n, m, side, p)
        sweep = _Sweep(p, v, h, g, side, memory)
        rows, columns = p.new_zeros(3, n), p.new_zeros(3, m if both else 0)  # of X, E and F = exp(z)
        with_plain = with_plain or h is None
        for at in tiles(n, m, side):
            f = sweep.exp_z(at)
            parts = [None, None, f if with_plain else None]
            if h is not None:
                e = sweep.exp_s(at)
                parts[:2] = torch.mul(e, f, out=sweep.scratch(at, 0)), e
            for index, part in enumerate(parts):
                if part is not None:
                    rows[index, at.rows] += part.sum(1)
                    if both:
                        columns[index, at.columns] += part.sum(0)
        if h is None:  # E is all ones, X is F
            rows[0], rows[1] = rows[2], m
            columns[0], columns[1] = columns[2], n
        ctx.save_for_backward(p, v, h, g, rows[:2], columns[:2])
        ctx.side, ctx.memory, ctx.generation, ctx.both = side, memory, memory.generation, both
        ctx.kept_s = sweep.kept_s
        outputs = (*rows.log().unbind(), *columns.log().unbind())
        if not with_plain:
            outputs = tuple(out.fill_(math.nan) if k in (2, 5) else out for k, out in enumerate(outputs))
        ctx.mark_non_differentiable(outputs[2], outputs[5])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        p, v, h, g, rows, columns = ctx.saved_tensors
        wants_z = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        wants_s = h is not None and (ctx.needs_input_grad[2] or ctx.needs_input_grad[3])
        still_ours = ctx.memory.generation == ctx.generation
        memory, kept_s = (ctx.memory, ctx.kept_s) if still_ours else (TileMemory(0), set())
        sweep = _Sweep(p, v, h, g, ctx.side, memory, kept_s)

        # dL/dz_ij = X_ij (x_row_i + x_col_j), dL/ds_ij = dL/dz_ij + E_ij (e_row_i + e_col_j)
        x_row, e_row = gradients[0] / rows[0], gradients[1] / rows[1]
        x_col, e_col = (gradients[3] / columns[0], gradients[4] / columns[1]) if ctx.both else (None, None)
        dp, dv = _zeros_like(p, v, wants_z and ctx.needs_input_grad[0], wants_z and ctx.needs_input_grad[1])
        dh, dg = _zeros_like(h, g, wants_s and ctx.needs_input_grad[2], wants_s and ctx.needs_input_grad[3])
        for at in tiles(len(p), len(v), ctx.side):
            a = _outer_sum(x_row, x_col, at, sweep.scratch(at, 0))
            a.mul_(sweep.exp_z(at))
            e = sweep.exp_s(at) if h is not None else None
            if wants_s and e is not None:
                b = _outer_sum(e_row, e_col, at, sweep.scratch(at, 1))
                b.add_(a).mul_(e)
                # M learns from small differences of large sums, which rounded products would drown
                add_products(dh, dg, b, h, g, at, exact=True)
            if wants_z:
                if e is not None:
                    a.mul_(e)
                add_products(dp, dv, a, p, v, at)
        return dp, dv, dh, dg, None, None, None, None


def _zeros_like(a: Tensor, b: Tensor, *wanted: bool) -> tuple[Tensor | None, Tensor | None]:
    """Room for those of two gradients that are wanted."""
    return torch.zeros_like(a) if wanted[0] else None, torch.zeros_like(b) if wanted[1] else None


def _outer_sum(row: Tensor, column: Tensor | None, at: Tile, out: Tensor) -> Tensor:
    """row_i + column_j over a tile."""
    if column is None:
        return out.copy_(row[at.rows, None].expand(at.height, at.width))
    return torch.add(row[at.rows, None], column[at.columns], out=out)


def add_products(
    da: Tensor | None, db: Tensor | None, weight: Tensor, a: Tensor, b: Tensor, at: Tile, *, exact: bool = False
) -> None:
    """Add a tile's part of d(a·b) weighted by `weight` to the gradients of a and of b."""
    if da is not None:
        add_product(da[at.rows], weight, b[at.columns], exact=exact)
    if db is not None:
        add_product(db[at.columns], weight.T, a[at.rows], exact=exact)


class _Sweep:
    """Tiles of exp(z) and exp(s), computed into reused buffers or taken from memory."""

    def __init__(
        self, p: Tensor, v: Tensor, h: Tensor | None, g: Tensor | None, side: int, memory: TileMemory,
        kept_s: set[Tile] | None = None,
    ):  # fmt: skip
        self.p, self.v, self.h, self.g = p, v, h, g
        self.memory = memory
        self.kept_s = kept_s or set()  # not all for which there is room: later tiles may have given some back
        self._flat = [p.new_empty(0)] * 4
        self._size = min(side, len(p)) * min(side, len(v))

    def exp_z(self, at: Tile) -> Tensor:
        known = self.memory.known_z(at)
        if known is not None:
            return known
        out = self.memory.slot("z", at, self.p)
        z = _exp_product(self.p, self.v, at, self.scratch(at, 2) if out is None else out)
        self.memory.remember_z(at)
        return z

    def exp_s(self, at: Tile) -> Tensor:
        assert self.h is not None
        assert self.g is not None
        out = self.memory.slot("s", at, self.h)
        if out is None:
            return _exp_product(self.h, self.g, at, self.scratch(at, 3))
        if at in self.kept_s:
            return out
        self.kept_s.add(at)
        return _exp_product(self.h, self.g, at, out)

    def scratch(self, at: Tile, which: int) -> Tensor:
        """One of four buffers of a tile's size; 2 and 3 are those of exp_z and exp_s."""
        if self._flat[which].numel() == 0:
            self._flat[which] = self.p.new_empty(self._size)
        return self._flat[which][: at.height * at.width].view(at.height, at.width)


def _exp_product(a: Tensor, b: Tensor, at: Tile, out: Tensor) -> Tensor:
    return torch.exp(product(a[at.rows], b[at.columns].T, out), out=out)
