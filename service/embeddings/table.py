"""One published table of embeddings, mapped: opening it reads nothing of any size, whatever its size.

Processes that open the same version share its pages. A deleted version stays readable for those who have it open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.embeddings.id_index import IdIndex
from service.embeddings.integrity import Stamps
from service.embeddings.layout import ENCODER, INVERSE_NORMS, LABELS, SPEC, VECTORS, VersionInfo, read_info
from trainer.errors import InvalidInput
from trainer.files.mapped import map_npy, release

_NAMED = 20  # classes that an error lists


@dataclass(frozen=True, eq=False)
class Table:
    """Arrays of `info.rows` rows, read-only; their maps go with the last array or table that uses them."""

    directory: Path
    info: VersionInfo
    vectors: NDArray[np.float32]  # [N, dim]
    inverse_norms: NDArray[np.float32]  # [N], 0 for a zero vector or one shorter than 2⁻¹⁰⁰
    labels: NDArray[np.int32] | None  # [N], place in info.classes, -1 none
    ids: IdIndex
    files: Stamps  # of what is mapped

    @classmethod
    def open(cls, directory: Path) -> Table:
        """Map the files of a version; no file descriptor stays open.

        Raises:
            OSError: it is not there, or not readable.
            ValueError: a file is not what version.json says.
        """
        info = read_info(directory)
        mapped = [name for name in info.files if name not in (ENCODER, SPEC, "ids.json")]
        stamps = Stamps(directory / name for name in mapped)  # before they are mapped: what changes then is noticed
        return cls(
            directory=directory,
            info=info,
            vectors=map_npy(directory / VECTORS, "<f4", (info.rows, info.dim)),
            inverse_norms=map_npy(directory / INVERSE_NORMS, "<f4", (info.rows,)),
            labels=None if info.classes is None else map_npy(directory / LABELS, "<i4", (info.rows,)),
            ids=IdIndex.open(directory, info),
            files=stamps,
        )

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """A copy of these vectors, [n, dim] in C order; NaN for row -1.

        Raises:
            IndexError: a row that the table does not have.
            Damaged: a file was changed since the table was opened.
        """
        self.files.check()
        taken = self.vectors[rows]  # -1 takes the last for a moment
        unknown = rows < 0
        if unknown.any():
            taken[unknown] = np.nan
        return taken

    def rows_labelled(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The rows of all these classes, ascending.

        Raises:
            InvalidInput: the table has no labels, or not a class of that name.
        """
        classes = self.info.classes
        if classes is None or self.labels is None:
            raise InvalidInput("this version has no labels to filter by. Filter by ids instead.")
        wanted = np.zeros(len(classes) + 1, np.bool_)  # the last is for -1
        for name in names:
            try:
                wanted[classes.index(name)] = True
            except ValueError as error:
                more = ", …" if len(classes) > _NAMED else ""
                known = ", ".join(repr(known) for known in classes[:_NAMED]) + more
                raise InvalidInput(f"unknown class {name!r} (expected one of {known}).") from error
        return np.flatnonzero(wanted[self.labels])

    def close(self) -> None:
        """Give memory back. Whoever still uses the table may go on: its maps go with the last reference to it."""
        release(self.vectors)
        release(self.inverse_norms)
