"""The negative-metric contrast over an N×N similarity that is never stored (design section 3).

One sweep over square tiles of E = exp(h gᵀ) and X = exp(h gᵀ + p vᵀ) yields row *and* column sums, so both directions
of the loss share each matrix product. Backward sweeps again: 2 products forward, at most 6 backward, and nothing larger
than a tile in memory unless a `TileMemory` with room is given.

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
from torch.nn.functional import softplus

DEFAULT_TILE = 1024  # 4 MB in float32: a few of them stay in the last-level cache while products run at full speed
_EXPONENT_LIMIT = {torch.float32: 43.5, torch.float64: 350.0}


class Terms(NamedTuple):
    """The parts of the objective, each averaged over anchors and both directions; `nce` carries no gradient."""

    nml: Tensor  # L_NML
    kl: Tensor  # KL(P0 ‖ P_i)
    nce: Tensor  # InfoNCE on the same pairs, for the MI estimate


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

    def reserve_z(self, n: int, side: int, like: Tensor) -> None:
        """Give room to exp(z) before exp(s): it serves every step of an epoch, exp(s) only one."""
        for tile in tiles(n, n, side):
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


def contrast(
    p: Tensor,
    v: Tensor,
    h: Tensor | None,
    g: Tensor | None,
    *,
    tile: int | None = None,
    memory: TileMemory | None = None,
    with_nce: bool = True,
) -> Terms:
    """Exact loss terms for z = p·v (p already divided by τ) and s = h·g; h = g = None means uniform weights.

    p, v, h, g: [N, d] with N ≥ 2, rows of any norm whose products stay within the exponent limit.

    Raises:
        ValueError: fewer than two rows, shapes that differ, or similarities too large to exponentiate.
    """
    _check(p, v, h, g)
    if tile is not None and tile < 1:
        raise ValueError(f"tile is {tile}; it must be at least 1")
    side = tile or DEFAULT_TILE
    return Terms(*_Contrast.apply(p, v, h, g, side, memory, with_nce))


def _check(p: Tensor, v: Tensor, h: Tensor | None, g: Tensor | None) -> None:
    if p.ndim != 2 or p.shape != v.shape or len(p) < 2:
        raise ValueError(f"u and v must be [N, d] with N ≥ 2 and equal shapes, got {tuple(p.shape)}, {tuple(v.shape)}")
    if (h is None) != (g is None):
        raise ValueError("give both h and g, or neither for uniform weights")
    largest = _largest(p, v)
    if h is not None and g is not None:
        if h.shape != g.shape or len(h) != len(p):
            raise ValueError(f"h and g must be [{len(p)}, d] alike, got {tuple(h.shape)}, {tuple(g.shape)}")
        largest += _largest(h, g)
    limit = _EXPONENT_LIMIT.get(p.dtype)
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


class _Contrast(torch.autograd.Function):
    """Sums in forward, gradients by a second sweep in backward; saves its inputs and vectors of length N only."""

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, v: Tensor, h: Tensor | None, g: Tensor | None, side: int,
        memory: TileMemory | None, with_nce: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        n = len(p)
        memory = memory or TileMemory(0)
        memory.generation += 1
        memory.reserve_z(n, side, p)
        sweep = _Sweep(p, v, h, g, side, memory)
        sums = p.new_zeros(6, n)  # rows and columns of E, X and F = exp(z)
        row_e, col_e, row_x, col_x, row_f, col_f = sums
        with_nce = with_nce or h is None
        for at in tiles(n, n, side):
            f = sweep.exp_z(at)
            if with_nce:
                row_f[at.rows] += f.sum(1)
                col_f[at.columns] += f.sum(0)
            if h is not None:
                e = sweep.exp_s(at)
                x = torch.mul(e, f, out=sweep.scratch(at, 0))
                row_e[at.rows] += e.sum(1)
                col_e[at.columns] += e.sum(0)
                row_x[at.rows] += x.sum(1)
                col_x[at.columns] += x.sum(0)
        if h is None:  # E is all ones
            sums[:2] = n
            sums[2:4] = sums[4:]

        positive = (p * v).sum(1)
        gap = sums[2:4].log() - sums[:2].log() + (math.log(n - 1) - positive)  # [2, N]: both directions
        nml = softplus(gap).mean()
        kl = sums[:2].log().mean() - math.log(n)
        if h is not None and g is not None:
            kl = kl - h.mean(0) @ g.mean(0)
        nce = (sums[4:].log() - positive).mean() if with_nce else nml.new_tensor(math.nan)

        ctx.save_for_backward(p, v, h, g, sums, gap)
        ctx.side, ctx.memory, ctx.generation = side, memory, memory.generation
        ctx.mark_non_differentiable(nce)
        return nml, kl, nce

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_nml: Tensor, d_kl: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        p, v, h, g, sums, gap = ctx.saved_tensors
        n, side = len(p), ctx.side
        wants_z = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        wants_s = h is not None and (ctx.needs_input_grad[2] or ctx.needs_input_grad[3])
        still_ours = ctx.memory.generation == ctx.generation
        sweep = _Sweep(p, v, h, g, side, ctx.memory if still_ours else TileMemory(0), s_is_kept=still_ours)

        # dL/dz_ij = X_ij (x_row_i + x_col_j), dL/ds_ij = dL/dz_ij + E_ij (e_row_i + e_col_j); the parts on the diagonal
        # and the constant -1/N of the KL are added after the sweep, where they cost O(N d).
        pull = torch.sigmoid(gap) * (d_nml / (2 * n))  # [2, N]
        x_row, x_col = pull / sums[2:4]
        e_row, e_col = (d_kl / (2 * n) - pull) / sums[:2]
        dp, dv = _zeros_like(p, v, wants_z)
        dh, dg = _zeros_like(h, g, wants_s)
        for at in tiles(n, n, side):
            a = torch.add(x_row[at.rows, None], x_col[at.columns], out=sweep.scratch(at, 0))
            a.mul_(sweep.exp_z(at))
            e = sweep.exp_s(at) if h is not None else None
            if dh is not None and e is not None:
                b = torch.add(e_row[at.rows, None], e_col[at.columns], out=sweep.scratch(at, 1))
                b.add_(a).mul_(e)
                dh[at.rows].addmm_(b, g[at.columns])
                dg[at.columns].addmm_(b.T, h[at.rows])
            if dp is not None:
                if e is not None:
                    a.mul_(e)
                dp[at.rows].addmm_(a, v[at.columns])
                dv[at.columns].addmm_(a.T, p[at.rows])
        if dp is not None:
            positive_pull = pull.sum(0).unsqueeze(1)
            dp.addcmul_(positive_pull, v, value=-1)
            dv.addcmul_(positive_pull, p, value=-1)
        if dh is not None:
            dh -= g.mean(0) * (d_kl / n)
            dg -= h.mean(0) * (d_kl / n)
        return dp, dv, dh, dg, None, None, None


def _zeros_like(a: Tensor, b: Tensor, wanted: bool) -> tuple[Any, Any]:
    """Room for a pair of gradients, or (None, None)."""
    return (torch.zeros_like(a), torch.zeros_like(b)) if wanted else (None, None)


class _Sweep:
    """Tiles of exp(z) and exp(s), computed into reused buffers or taken from memory."""

    def __init__(
        self, p: Tensor, v: Tensor, h: Tensor | None, g: Tensor | None, side: int, memory: TileMemory,
        s_is_kept: bool = False,
    ):  # fmt: skip
        self.p, self.v, self.h, self.g = p, v, h, g
        self.memory = memory
        self.s_is_kept = s_is_kept
        self._flat = [p.new_empty(0)] * 4
        self._size = min(side, len(p)) ** 2

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
        return out if self.s_is_kept else _exp_product(self.h, self.g, at, out)

    def scratch(self, at: Tile, which: int) -> Tensor:
        """One of four buffers of a tile's size; 2 and 3 are those of exp_z and exp_s."""
        if self._flat[which].numel() == 0:
            self._flat[which] = self.p.new_empty(self._size)
        return self._flat[which][: at.height * at.width].view(at.height, at.width)


def _exp_product(a: Tensor, b: Tensor, at: Tile, out: Tensor) -> Tensor:
    return torch.mm(a[at.rows], b[at.columns].T, out=out).exp_()
