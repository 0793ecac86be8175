"""Features written block by block, in the one form that `trainer.data.features` would choose for the whole matrix.

Whether at most a quarter is non-zero is known only at the end. The first block decides how to write meanwhile; if it
misled, the matrix is written again in the other form, from disk to disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.sparsity import SPARSE_BELOW
from trainer.files.mapped import release
from trainer.files.npy import NpyWriter

Matrix = NDArray[np.float32]


class FeatureWriter:
    """Rows [n, F] in, files x.npy or x_indptr.npy, x_indices.npy and x_values.npy out."""

    def __init__(self, directory: Path, scratch: Path, num_features: int, *, block_bytes: int):
        self._directory, self._scratch = directory, scratch
        self._num_features = num_features
        self._rows_at_once = max(1, block_bytes // (4 * num_features))
        self._nonzero = 0
        self._writer: _Dense | _Sparse | None = None

    def add(self, block: Matrix) -> None:
        nonzero = int(np.count_nonzero(block))
        self._nonzero += nonzero
        if self._writer is None:
            # A zero with a sign is no entry of a sparse matrix but keeps its sign in a dense one: not yet to be lost.
            sparse = nonzero <= SPARSE_BELOW * block.size
            shape = self._scratch, self._num_features
            self._writer = _Sparse(*shape, signed_zeros=True) if sparse else _Dense(*shape)
        self._writer.add(block)

    def finish(self) -> None:
        """Complete the files and put them in place."""
        writer = self._writer
        assert writer is not None, "a table has at least one block"
        writer.close()
        sparse = self._nonzero <= SPARSE_BELOW * writer.rows * self._num_features
        if sparse == isinstance(writer, _Sparse) and (not sparse or writer.stored == self._nonzero):
            for path in writer.paths:
                path.rename(self._directory / path.name)
            return
        shape = self._directory, self._num_features
        with _Sparse(*shape, signed_zeros=False) if sparse else _Dense(*shape) as final:
            for block in writer.blocks(self._rows_at_once):
                final.add(block)
        for path in writer.paths:
            path.unlink()


class _Form:
    """A matrix in one form, being written."""

    def __init__(self, **files: NpyWriter):
        self.files = files
        self.rows = 0
        self.stored = 0

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self.files.values()]

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Dense(_Form):
    def __init__(self, directory: Path, num_features: int):
        super().__init__(x=NpyWriter(directory / "x.npy", np.float32, (num_features,)))

    def add(self, block: Matrix) -> None:
        self.files["x"].append(block)
        self.rows += len(block)

    def blocks(self, rows: int) -> Iterator[Matrix]:
        x = np.load(self.files["x"].path, mmap_mode="r")
        for start in range(0, len(x), rows):
            yield np.array(x[start : start + rows])
            release(x)


class _Sparse(_Form):
    def __init__(self, directory: Path, num_features: int, *, signed_zeros: bool):
        super().__init__(
            indptr=NpyWriter(directory / "x_indptr.npy", np.int64),
            indices=NpyWriter(directory / "x_indices.npy", np.int64),
            values=NpyWriter(directory / "x_values.npy", np.float32),
        )
        self._num_features = num_features
        self._signed_zeros = signed_zeros
        self.files["indptr"].append(np.zeros(1, dtype=np.int64))

    def add(self, block: Matrix) -> None:
        kept = block.view(np.uint32) != 0 if self._signed_zeros else block != 0
        self.files["indptr"].append(self.stored + np.cumsum(np.count_nonzero(kept, axis=1)))
        row, column = np.nonzero(kept)
        self.files["indices"].append(column)
        self.files["values"].append(block[row, column])
        self.stored += len(row)
        self.rows += len(block)

    def blocks(self, rows: int) -> Iterator[Matrix]:
        indptr, indices, values = (np.load(path, mmap_mode="r") for path in self.paths)
        for start in range(0, self.rows, rows):
            ends = np.array(indptr[start : start + rows + 1])
            part = slice(ends[0], ends[-1])
            block = np.zeros((len(ends) - 1, self._num_features), dtype=np.float32)
            block[np.repeat(np.arange(len(block)), np.diff(ends)), indices[part]] = values[part]
            yield block
            for array in (indptr, indices, values):
                release(array)
