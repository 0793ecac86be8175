"""Node features as one float32 matrix: compressed rows (CSR) where at most a quarter is non-zero, else dense.

CSR costs 12 bytes a value and dense 4 bytes an entry, so a quarter is where CSR is clearly the smaller; bag-of-words
sets are 1-10 % dense and their first layer costs more than the loss if they are not kept sparse (design section 3).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.data.sparsity import SPARSE_BELOW
from trainer.errors import InvalidInput


def as_features(x: Any) -> Tensor:
    """The matrix in the form above.  x: [N, F] numpy, torch (strided or CSR) or scipy sparse.

    Raises:
        InvalidInput: not a matrix of finite numbers with at least one column.
    """
    tensor = _to_tensor(x)
    if tensor.dim() != 2 or tensor.shape[1] == 0:
        raise InvalidInput(
            f"features have shape {tuple(tensor.shape)}; give a matrix with a row per node, [N, F], F > 0."
        )
    check_finite(tensor)
    sparse = tensor.layout == torch.sparse_csr
    stored = tensor.values().numel() if sparse else int(torch.count_nonzero(tensor))
    if stored > SPARSE_BELOW * tensor.numel():
        return tensor.to_dense().contiguous()
    return tensor if sparse else _quiet(lambda: tensor.to_sparse_csr())


def csr(indptr: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch CSR matrix over these very arrays; the caller has checked them."""
    return _quiet(lambda: torch.sparse_csr_tensor(indptr, indices, values, shape, check_invariants=False))


def check_finite(x: Tensor) -> None:
    """Refuse NaN and infinity, naming the first place they stand at."""
    values = x.values() if x.layout == torch.sparse_csr else x
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return
    if x.layout == torch.sparse_csr:
        at = int(finite.logical_not().nonzero()[0])
        row = int(torch.searchsorted(x.crow_indices(), at, right=True)) - 1
        column, value = int(x.col_indices()[at]), float(values[at])
    else:
        row, column = finite.logical_not().nonzero()[0].tolist()
        value = float(x[row, column])
    raise InvalidInput(f"x[{row}, {column}] is {value}. Features must be finite: fill in or remove such values.")


def rownorm(x: Tensor) -> Tensor:
    """Rows divided by their sum; rows of zeros stay. Keeps the layout.

    Raises:
        InvalidInput: a feature is negative, so a row's sum may vanish.
    """
    sparse = x.layout == torch.sparse_csr
    values = x.values() if sparse else x
    if values.numel() and float(values.min()) < 0:
        raise InvalidInput(
            "data.features=rownorm needs features of at least 0, and some are negative. Use zscore or raw."
        )
    if not sparse:
        total = x.sum(1, keepdim=True)
        return x / torch.where(total > 0, total, 1)
    row = torch.repeat_interleave(torch.arange(x.shape[0]), x.crow_indices().diff())
    total = torch.zeros(x.shape[0]).index_add_(0, row, values)
    scaled = values / torch.where(total > 0, total, 1)[row]
    return csr(x.crow_indices(), x.col_indices(), scaled, (x.shape[0], x.shape[1]))


def zscore(x: Tensor) -> Tensor:
    """Columns with mean 0 and (population) deviation 1; constant columns become 0. Dense: 4 N F bytes."""
    dense = x.to_dense() if x.layout == torch.sparse_csr else x.clone()
    constant = dense.amax(0) == dense.amin(0)  # their deviation is 0 or what rounding leaves: never divide by it
    dense -= dense.mean(0, dtype=torch.float64).float()
    deviation = dense.square().mean(0, dtype=torch.float64).sqrt()
    dense /= torch.where(constant, torch.inf, deviation).float()
    return dense


def _to_tensor(x: Any) -> Tensor:
    if hasattr(x, "tocsr"):  # scipy
        matrix = x.tocsr().astype(np.float32)
        matrix.sum_duplicates()
        indptr, indices = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
        return csr(indptr, indices, torch.from_numpy(matrix.data), matrix.shape)
    if isinstance(x, Tensor):
        if x.is_complex():
            raise InvalidInput("features are complex numbers; give real ones.")
        return x if x.dtype == torch.float32 else _quiet(lambda: x.float())
    array = np.asarray(x)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"features have type {array.dtype}; give numbers.")
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, which is refused by name
        return torch.from_numpy(np.array(array, dtype=np.float32))


def _quiet(build: Any) -> Tensor:
    """CSR in torch warns once that it is new; nobody who trains can act on that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        tensor: Tensor = build()
    return tensor
