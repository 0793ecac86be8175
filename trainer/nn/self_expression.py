"""Sparse self-expression: each embedding as a sum of few others within k hops, z_i ≈ Σ_j relu(C)_ij z_j (GRAPE).

    minimise  ‖Z − relu(C) Z‖_F / F + λ Σ_j [ μ‖C_·j‖₁ + (1−μ)/2 ‖C_·j‖₂ ]              over C on the active pairs Φ
    then      Φ_ij = 1[ |cos(z_i − Σ_k relu(C)_ik z_k, z_j)| ≥ λμ ]  within k hops, i ≠ j,  and minimise again
    then      S = (relu(C) + relu(C)ᵀ)/2

C is 0 outside of Φ, so that only Φ is ever stored: products with C are sparse, and products with the residual are
taken at the active pairs. Who is within k hops is found by bit sets, a block of nodes at a time. All of that is exact.
Approximate is `most`: where more than so many pairs of a row pass, those with the largest cosines stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from trainer.data.features import csr
from trainer.data.seeds import BITS, hashed
from trainer.data.seeds import key as seed_key
from trainer.nn.pairs import pair_dots, with_values
from trainer.nn.sparse import pointer, row_of_entry

BLOCK = 1_024  # nodes whose neighbourhoods are looked at together: bytes × 13 × N


class SelfExpression(nn.Module):
    """C and S with their places, as pairs i N + j in ascending order. Their number changes; checkpoints hold any.

    Args:
        indptr, indices: the graph, as in trainer.data.graph.
        seed: of the first values of coefficients, N(0, 1) and a function of seed and pair alone.
    """

    pairs: Tensor  # [P] int64, Φ
    coefficients: Tensor  # [P], C
    similar_pairs: Tensor  # [Q] int64
    similarities: Tensor  # [Q], S > 0
    capped: Tensor  # rows of Φ that lost pairs to `most`

    def __init__(self, indptr: Tensor, indices: Tensor, *, hops: int, most: int, seed: int):
        super().__init__()
        self.n, self.hops, self.most, self.seed = len(indptr) - 1, hops, most, seed
        self._indptr, self._indices = with_loops(indptr.cpu().numpy(), indices.cpu().numpy())
        target = torch.repeat_interleave(torch.arange(self.n), indptr.diff().cpu())
        pairs = (indices.cpu() * self.n + target).sort().values  # the edges are the first active pairs
        self.register_buffer("pairs", pairs)
        self.register_buffer("coefficients", self._first_values(pairs))
        self.register_buffer("similar_pairs", pairs[:0])
        self.register_buffer("similarities", torch.zeros(0))
        self.register_buffer("capped", torch.tensor(0))

    @torch.no_grad()
    def renew(self, z: Tensor, *, features: int, strength: float, share: float, steps: int, lr: float) -> None:
        """Fit C, find Φ anew and fit C again.  z: [N, d]; features: F; strength: λ; share: μ."""
        for last in (False, True):
            pattern = self._pattern(self.pairs, self.coefficients)
            self.coefficients = fit(
                z, pattern, features=features, strength=strength, share=share, steps=steps, lr=lr
            )  # fmt: skip
            if not last:
                residual = z - with_values(pattern, self.coefficients.relu()) @ z
                self._activate(residual, z, strength * share)
        self._symmetrise()

    @torch.no_grad()
    def scale(self, theta: float, draws: torch.Generator, sample: int = 1_000) -> None:
        """S ← min(1, θ S / the largest of a sample of its values)."""
        if len(self.similarities):
            drawn = torch.randint(len(self.similarities), (sample,), generator=draws)
            largest = self.similarities[drawn.to(self.similarities.device)].max()
            self.similarities = (theta * self.similarities / largest).clamp(max=1)

    def similarity(self) -> Tensor:
        """S, a CSR matrix [N, N]: symmetric, with an empty diagonal."""
        return self._pattern(self.similar_pairs, self.similarities)

    def _pattern(self, pairs: Tensor, values: Tensor) -> Tensor:
        return csr(pointer(pairs // self.n, self.n), pairs % self.n, values, (self.n, self.n))

    def _activate(self, residual: Tensor, z: Tensor, threshold: float) -> None:
        """Φ anew; a pair that stays keeps its coefficient, one that comes or returns has its first value."""
        found, self.capped = [], torch.zeros_like(self.capped)
        residual, z = normalize(residual), normalize(z)
        for rows, near in balls(self._indptr, self._indices, self.hops):
            cosines = (residual[rows] @ z.T).abs_()
            cosines[~near.to(z.device)] = -1
            passed = cosines >= threshold
            over = passed.sum(1) > self.most
            if bool(over.any()):
                self.capped += over.sum()
                best = cosines.topk(self.most, dim=1).indices
                passed &= torch.zeros_like(passed).scatter_(1, best, True)
            row, column = passed.nonzero(as_tuple=True)
            found.append((row + rows.start) * self.n + column)
        pairs = torch.cat(found)
        values = self._first_values(pairs).to(self.coefficients)
        if len(self.pairs):
            at = torch.searchsorted(self.pairs, pairs).clamp_(max=len(self.pairs) - 1)
            values = torch.where(self.pairs[at] == pairs, self.coefficients[at], values)
        self.pairs, self.coefficients = pairs, values

    def _symmetrise(self) -> None:
        positive = self.coefficients > 0
        pairs, half = self.pairs[positive], self.coefficients[positive] / 2
        both = torch.cat([pairs, pairs % self.n * self.n + pairs // self.n])
        self.similar_pairs, place = both.unique(return_inverse=True)
        self.similarities = half.new_zeros(len(self.similar_pairs)).index_add_(0, place, torch.cat([half, half]))

    def _first_values(self, pairs: Tensor) -> Tensor:
        """N(0, 1) for each pair, by Box and Muller's method from two hashes of it."""
        first, second = (
            (hashed(seed_key(self.seed, "coefficients", which), pairs).double() + 0.5) / 2**BITS for which in (0, 1)
        )
        return ((-2 * first.log()).sqrt() * (2 * math.pi * second).cos()).to(torch.get_default_dtype())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for as many pairs as the checkpoint has."""
        for name, buffer in self.named_buffers(recurse=False):
            stored = state_dict.get(prefix + name)
            if stored is not None:
                setattr(self, name, buffer.new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def fit(
    z: Tensor, pattern: Tensor, *, features: int, strength: float, share: float, steps: int, lr: float
) -> Tensor:  # fmt: skip
    """Adam steps on C at the places of a CSR pattern, from its values; the gradient is written out.  -> [nnz]"""
    values = nn.Parameter(pattern.values().clone())
    rows, columns, n = row_of_entry(pattern.crow_indices()), pattern.col_indices(), len(z)
    optimiser = torch.optim.Adam([values], lr=lr)
    for _ in range(steps):
        c = values.detach()
        at = c > 0  # the others take no part in relu(C), nor has the data a gradient there
        positive = csr(pointer(rows[at], n), columns[at], c[at], (n, n))
        residual = z - positive @ z
        pull = pair_dots(residual, z, positive) / (features * residual.norm().clamp_min(1e-12))
        norms = c.new_zeros(n).index_add_(0, columns, c.square()).sqrt_().clamp_min_(1e-12)
        penalty = share * c.sign() + (1 - share) / 2 * c / norms[columns]
        values.grad = strength * penalty
        values.grad[at] -= pull
        optimiser.step()
    return values.detach()


def with_loops(indptr: NDArray[np.int64], indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same graph with an edge from each node to itself."""
    n = len(indptr) - 1
    return indptr + np.arange(n + 1), np.insert(indices, indptr[1:], np.arange(n))


def balls(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], hops: int, block: int = BLOCK
) -> Iterator[tuple[slice, Tensor]]:  # fmt: skip
    """For block after block of nodes, whom each of them reaches in at most so many hops, itself apart: [b, N] bool.

    A node's 64-bit words say which nodes of the block reach it; a hop is an `or` over those that send to it, of which
    the node itself must be one (`with_loops`).
    """
    n = len(indptr) - 1
    for start in range(0, n, block):
        nodes = np.arange(start, min(start + block, n))
        bit = nodes - start
        reached = np.zeros((n, -(-len(nodes) // 64)), np.uint64)
        reached[nodes, bit // 64] = np.uint64(1) << (bit % 64).astype(np.uint64)
        for _ in range(hops):
            reached = np.bitwise_or.reduceat(reached[indices], indptr[:-1], axis=0)
        bits = np.unpackbits(reached.astype("<u8").view(np.uint8), axis=1, count=len(nodes), bitorder="little")
        near = torch.from_numpy(bits.T.astype(bool))
        near[torch.arange(len(nodes)), torch.from_numpy(nodes)] = False
        yield slice(start, start + len(nodes)), near
