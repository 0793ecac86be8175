"""Sparse matrices that are multiplied from the left, with their transpose at hand for backward.

Bag-of-words features are 1-10 % dense and an adjacency far less; both stay in CSR so that no message per edge and no
dense copy of the features is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.data.features import csr


@dataclass(frozen=True)
class SparseOperator:
    """A [n, m] matrix and its transpose, both in CSR."""

    matrix: Tensor
    transpose: Tensor

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[n, m] @ [m, d] -> [n, d], differentiable in the dense factor."""
        product: Tensor = _Multiply.apply(self, dense)
        return product


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: SparseOperator, dense: Tensor) -> Tensor:
        ctx.operator = operator
        return operator.matrix @ dense

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.operator.transpose @ gradient.contiguous()


def transpose_order(indices: Tensor) -> Tensor:
    """Order in which CSR entries appear in the CSR of the transpose."""
    return torch.argsort(indices, stable=True)


def row_of_entry(indptr: Tensor) -> Tensor:
    """Row number of every CSR entry.  [n+1] -> [nnz]."""
    return torch.repeat_interleave(torch.arange(len(indptr) - 1, device=indptr.device), indptr.diff())


def pointer(rows: Tensor, n: int) -> Tensor:
    """CSR row pointer of sorted row numbers.  [nnz] -> [n+1]."""
    return torch.cat([rows.new_zeros(1), torch.bincount(rows, minlength=n).cumsum(0)])


def operator_of(matrix: Tensor) -> SparseOperator:
    """Pair a CSR tensor with its transpose; costs one sort of its entries."""
    n, m = matrix.shape
    indptr, indices, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    order = transpose_order(indices)
    transpose = csr(pointer(indices[order], m), row_of_entry(indptr)[order], values[order], (m, n))
    return SparseOperator(csr(indptr, indices, values, (n, m)), transpose)
