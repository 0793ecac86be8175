"""Features of nodes that come after training, prepared as those of the graph were (`data.features` of the spec).

raw      as they are
rownorm  each row by its own sum
zscore   by means and deviations of the stored graph's columns: new nodes do not move them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.features import check_finite, csr, rownorm
from trainer.errors import InvalidInput


@dataclass(frozen=True)
class Preparation:
    """How features enter the encoder."""

    kind: Literal["raw", "rownorm", "zscore"]
    width: int  # F
    sparse: bool  # whether the graph's prepared features are compressed rows
    mean: Tensor | None = None  # [F] float32, of zscore
    deviation: Tensor | None = None  # [F] float32, infinite for constant columns

    def apply(self, x: Tensor) -> Tensor:
        """Raw features, dense or CSR, as the encoder gets them.  [m, F] -> [m, F]."""
        if self.kind == "rownorm":
            x = rownorm(x)
        elif self.mean is not None and self.deviation is not None:
            x = (x.to_dense() - self.mean) / self.deviation
        if self.sparse and x.layout != torch.sparse_csr:
            indptr = torch.cat([torch.zeros(1, dtype=torch.int64), (x != 0).sum(1).cumsum(0)])
            row, column = x.nonzero().T
            return csr(indptr, column, x[row, column], (x.shape[0], x.shape[1]))
        return x if self.sparse else x.to_dense()


def standardisation(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per column, step by step as `trainer.data.features.zscore` has them.  [N, F] -> [F], [F]."""
    dense = raw.to_dense()
    constant = dense.amax(0) == dense.amin(0)
    mean = dense.mean(0, dtype=torch.float64).float()
    deviation = (dense - mean).square_().mean(0, dtype=torch.float64).sqrt()
    return mean, torch.where(constant, torch.inf, deviation).float()


def features_of(arrays: Mapping[str, NDArray[Any]], m: int, width: int) -> Tensor:
    """The raw features of a request: `features` [m, F], or compressed rows indptr [m + 1], indices, values.

    Of compressed rows some may have been complete ones; `widths` [m] then says how many features those had, and -1 of
    the others. A complete row that is too short would else pass for one that ends with zeros.

    Raises:
        InvalidInput: naming the place and the width that was expected.
    """
    if "features" in arrays:
        dense = np.asarray(arrays["features"])
        if dense.ndim != 2 or dense.shape[0] != m:
            raise InvalidInput(f"features have shape {dense.shape} for {m} nodes; give a row of {width} to each.")
        if dense.shape[1] != width:
            raise InvalidInput(f"nodes have {dense.shape[1]} {_other_width(width)}")
        x = torch.from_numpy(np.array(dense, dtype=np.float32))
    else:
        _check_widths(np.asarray(arrays.get("widths", np.full(m, -1))), m, width)
        x = _compressed(arrays, m, width)
    check_finite(x)
    return x


def _other_width(width: int) -> str:
    return f"features; the graph has {width}. Give all, in its order."


def _check_widths(widths: NDArray[Any], m: int, width: int) -> None:
    if widths.shape != (m,):
        raise InvalidInput(f"widths have shape {widths.shape} for {m} nodes; give each its number of features, or -1.")
    wrong = (widths >= 0) & (widths != width)
    if wrong.any():
        node = int(wrong.argmax())
        raise InvalidInput(f"node {node} has {widths[node]} {_other_width(width)}")


def _compressed(arrays: Mapping[str, NDArray[Any]], m: int, width: int) -> Tensor:
    """Sorted, duplicates added, as for any sparse matrix."""
    try:
        indptr, indices, values = (np.asarray(arrays[key]) for key in ("indptr", "indices", "values"))
    except KeyError as error:
        raise InvalidInput(
            f"there are no features: {error} is missing. Give features, or indices and values."
        ) from None
    if indptr.shape != (m + 1,) or indptr[0] != 0 or (np.diff(indptr) < 0).any() or indptr[-1] != len(indices):
        raise InvalidInput(f"indptr does not share out {len(indices)} features to {m} nodes.")
    if indices.shape != values.shape or indices.ndim != 1:
        raise InvalidInput(f"{len(indices)} feature indices, but {len(values)} values. Give one value per index.")
    wrong = (indices < 0) | (indices >= width)
    if wrong.any():
        i = int(wrong.argmax())
        node = int(np.searchsorted(indptr, i, side="right")) - 1
        raise InvalidInput(f"node {node} has feature {indices[i]}; the graph has {width}, 0 to {width - 1}.")
    row = np.repeat(np.arange(m, dtype=np.int64), np.diff(indptr))
    key, which = np.unique(row * width + indices.astype(np.int64), return_inverse=True)
    sums = np.bincount(which.reshape(-1), values.astype(np.float64), len(key)).astype(np.float32)
    pointer = np.searchsorted(key, np.arange(m + 1, dtype=np.int64) * width)
    return csr(torch.from_numpy(pointer), torch.from_numpy(key % width), torch.from_numpy(sums), (m, width))
