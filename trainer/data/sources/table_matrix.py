"""Columns of features as one matrix, and back. A list column is as many columns of it as a list is long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.data.sources.table_file import Columns, TableFile

Matrix = NDArray[np.float32]


def width_of(table: TableFile, names: Sequence[str]) -> int:
    """Columns of the matrix that these columns of the table make."""
    return sum(table.widths.get(name, 1) for name in names)


def feature_matrix(table: TableFile, columns: Columns, names: Sequence[str]) -> Matrix:
    """[rows, F]; takes the columns out of `columns`, so that the table is never held twice."""
    x = np.empty((len(columns[names[0]]), width_of(table, names)), dtype=np.float32)
    start = 0
    for name in names:
        column = columns.pop(name)
        width = table.widths.get(name)
        if width is None:
            x[:, start] = column.to_numpy()
        else:
            row = 0
            for chunk in column.chunks:
                x[row : row + len(chunk), start : start + width] = chunk.flatten().to_numpy().reshape(-1, width)
                row += len(chunk)
        start += width or 1
    return x


def matrix_columns(table: TableFile, x: Matrix, names: Sequence[str]) -> Columns:
    """The columns that `feature_matrix` makes x of.  x: [rows, F]"""
    found: Columns = {}
    start = 0
    for name in names:
        width = table.widths.get(name)
        part = np.ascontiguousarray(x[:, start : start + (width or 1)]).reshape(-1)
        column = pa.array(part) if width is None else pa.FixedSizeListArray.from_arrays(pa.array(part), width)
        found[name] = pa.chunked_array([column])
        start += width or 1
    return found
