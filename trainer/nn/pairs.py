"""Products of single pairs of rows, where a sparse pattern says which: a_i · b_j without the other N² − E of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.data.features import csr
from trainer.nn.sparse import transposed


def pair_dots(a: Tensor, b: Tensor, pattern: Tensor) -> Tensor:
    """a_i · b_j for every stored (i, j) of a CSR pattern, in its order; differentiable in a and b.

    a: [n, d], b: [m, d], pattern: [n, m], its values are not looked at -> [nnz]. Nothing of size nnz × d is made.
    """
    dots: Tensor = _PairDots.apply(a, b, pattern)
    return dots


def with_values(pattern: Tensor, values: Tensor) -> Tensor:
    """A CSR matrix with the places of `pattern` and these values."""
    return csr(pattern.crow_indices(), pattern.col_indices(), values, (pattern.shape[0], pattern.shape[1]))


class _PairDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, pattern: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.pattern = pattern
        if not pattern.col_indices().numel():
            return a.new_zeros(0)
        empty = with_values(pattern, a.new_zeros(pattern.col_indices().numel()))
        return torch.sparse.sampled_addmm(empty, a, b.T, beta=0).values()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        weights = with_values(ctx.pattern, gradient.contiguous())
        return weights @ b, transposed(weights) @ a, None
