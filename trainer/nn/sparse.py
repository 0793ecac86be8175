"""Sparse matrices that are multiplied from the left, with their transpose at hand for backward.

Bag-of-words features are 1-10 % dense and an adjacency far less; both stay in CSR so that no message per edge and no
dense copy of the features is ever made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.data.features import csr


class Operator(Protocol):
    """What features are multiplied by."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def nnz(self) -> int: ...  # multiplications per column

    def __matmul__(self, dense: Tensor) -> Tensor: ...


class SparseOperator:
    """A [n, m] matrix in CSR, and its transpose, made when a backward first needs it.

    Args:
        matrix: CSR tensor.
        transpose: builds the CSR of the transpose; None sorts the entries.
    """

    def __init__(self, matrix: Tensor, transpose: Callable[[], Tensor] | None = None):
        self.matrix = matrix
        self._build = transpose

    @property
    def shape(self) -> torch.Size:
        return self.matrix.shape

    @property
    def nnz(self) -> int:
        return self.matrix.values().numel()

    @cached_property
    def transpose(self) -> Tensor:
        return transposed(self.matrix) if self._build is None else self._build()

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[n, m] @ [m, d] -> [n, d], differentiable in the dense factor."""
        product: Tensor = _Multiply.apply(self, dense)
        return product


class PersonalisedPageRank:
    """Π = a (I − (1−a) Â)⁻¹ as an operator that is never stored: K steps of Y ← (1−a) Â Y + a X (methods 1.3).

    The error of K steps is (1−a)^K Â^K (I − Π), in the spectral norm below (1−a)^K: 1.2 % here, next to nothing for
    what is smooth over the graph.
    """

    def __init__(self, adjacency: SparseOperator, *, teleport: float = 0.2, steps: int = 20):
        self.adjacency, self.teleport, self.steps = adjacency, teleport, steps

    @property
    def shape(self) -> torch.Size:
        return self.adjacency.shape

    @property
    def nnz(self) -> int:
        return self.steps * self.adjacency.nnz

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[n, n] @ [n, d] -> [n, d], differentiable in the dense factor."""
        product: Tensor = _Diffuse.apply(self, dense)
        return product

    def iterate(self, matrix: Tensor, dense: Tensor) -> Tensor:
        """The K steps over a CSR matrix, outside of autograd."""
        start, product = self.teleport * dense, dense
        for _ in range(self.steps):
            product = (matrix @ product).mul_(1 - self.teleport).add_(start)
        return product


class Shuffled:
    """An operator on rows in another order, A (X[order]), without a copy of X itself: corruption, as in MVGRL."""

    def __init__(self, operator: Operator, order: Tensor):
        self.operator, self.order = operator, order

    @property
    def shape(self) -> torch.Size:
        return self.operator.shape

    @property
    def nnz(self) -> int:
        return self.operator.nnz

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[n, n] @ [n, d] -> [n, d], differentiable in the dense factor."""
        return self.operator @ dense.index_select(0, self.order)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: SparseOperator, dense: Tensor) -> Tensor:
        ctx.operator = operator
        return operator.matrix @ dense

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.operator.transpose @ gradient.contiguous()


class _Diffuse(torch.autograd.Function):
    """One node of the autograd graph for all K steps: nodes in between would pin the freed memory of each step.

    The steps are a polynomial in Â, so their transpose is the same polynomial in Âᵀ.
    """

    @staticmethod
    def forward(ctx: Any, diffusion: PersonalisedPageRank, dense: Tensor) -> Tensor:
        ctx.diffusion = diffusion
        return diffusion.iterate(diffusion.adjacency.matrix, dense)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.diffusion.iterate(ctx.diffusion.adjacency.transpose, gradient.contiguous())


def transpose_order(indices: Tensor) -> Tensor:
    """Order in which CSR entries appear in the CSR of the transpose."""
    return torch.argsort(indices, stable=True)


def row_of_entry(indptr: Tensor) -> Tensor:
    """Row number of every CSR entry.  [n+1] -> [nnz]."""
    return torch.repeat_interleave(torch.arange(len(indptr) - 1, device=indptr.device), indptr.diff())


def pointer(rows: Tensor, n: int) -> Tensor:
    """CSR row pointer of sorted row numbers.  [nnz] -> [n+1]."""
    return torch.cat([rows.new_zeros(1), torch.bincount(rows, minlength=n).cumsum(0)])


def transposed(matrix: Tensor) -> Tensor:
    """The transpose in CSR; costs one sort of the entries."""
    n, m = matrix.shape
    indptr, indices, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    order = transpose_order(indices)
    return csr(pointer(indices[order], m), row_of_entry(indptr)[order], values[order], (m, n))


def rows_of(matrix: Tensor, rows: Tensor) -> Tensor:
    """Some rows of a CSR matrix, in the given order.  [N, F], [n] -> [n, F]."""
    indptr = matrix.crow_indices()
    start = indptr[rows]
    counts = indptr[rows + 1] - start
    ends = counts.cumsum(0)
    # entry k of the result is entry (k - first of its row) + start of its row
    at = torch.arange(int(ends[-1]) if len(ends) else 0) + torch.repeat_interleave(start - (ends - counts), counts)
    taken = torch.cat([ends.new_zeros(1), ends])
    return csr(taken, matrix.col_indices()[at], matrix.values()[at], (len(rows), matrix.shape[1]))
