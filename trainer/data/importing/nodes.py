"""The node table, block by block: ids, labels and features go to disk as they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.importing.blocks import blocks
from trainer.data.importing.budget import Budget
from trainer.data.importing.features import FeatureWriter
from trainer.data.importing.id_index import IntegerIndex, TextIndex, build_index
from trainer.data.importing.ids import IdWriter
from trainer.data.sources.labels import check_classes
from trainer.data.sources.table_file import TableFile
from trainer.data.sources.table_matrix import feature_matrix
from trainer.data.sources.tables import (
    Tables,
    check_count,
    duplicate_id,
    label_values,
    number_labels,
    read_ids,
)
from trainer.files.mapped import pieces, release
from trainer.files.npy import NpyWriter
from trainer.spec.data import FilesSpec


class Nodes(NamedTuple):
    """What is on disk now, and how to find a node by its id."""

    num_nodes: int
    classes: tuple[str, ...]
    rows: IntegerIndex | TextIndex


def import_nodes(
    tables: Tables, spec: FilesSpec, directory: Path, scratch: Path, budget: Budget, tell: Callable[[float], None]
) -> Nodes:
    """Write ids.npy, y.npy if there are labels, and the features.

    Raises:
        InvalidInput: as `trainer.data.sources.tables.load`.
    """
    ids = IdWriter(directory, scratch)
    labels = None if tables.label is None else LabelWriter(directory, scratch, tables.nodes)
    features = FeatureWriter(directory, scratch, tables.num_features, block_bytes=budget.block_bytes)
    count = 0
    for block in blocks(
        tables.nodes,
        text=tables.node_text,
        numbers=tables.features,
        block_bytes=budget.block_bytes,
        scratch=scratch,
        tell=tell,
    ):
        ids.add(read_ids(block.table, spec.id_column, block.columns[spec.id_column]))
        if labels is not None and tables.label is not None:
            labels.add(label_values(block.table, tables.label, block.columns[tables.label]))
        features.add(feature_matrix(tables.nodes, block.columns, tables.features))
        count += block.rows
        tell(block.share)
    check_count(tables.nodes, count)
    texts = ids.finish()
    index = build_index(directory / "ids.npy", texts)
    duplicate = index.duplicate()
    if duplicate is not None:
        name = np.load(directory / "ids.npy", mmap_mode="r")[duplicate.row]
        raise duplicate_id(tables.nodes, duplicate.row, duplicate.earlier, name)
    classes = () if labels is None else labels.finish()
    features.finish()
    return Nodes(count, classes, index)


class LabelWriter:
    """Labels as they come; which number a class has is known only when all classes are."""

    def __init__(self, directory: Path, scratch: Path, table: TableFile):
        self._table = table
        self._path = directory / "y.npy"
        self._codes = NpyWriter(scratch / "codes.npy", np.int64)
        self._code_of: dict[Any, int] = {}  # in order of appearance
        self._first_row: list[int] = []
        self._type = pa.int64()

    def add(self, labels: pa.ChunkedArray) -> None:
        """labels: int64 or string, null where there is none, as from `tables.label_values`."""
        self._type = labels.type
        distinct = pc.unique(labels)
        position = pc.index_in(labels, value_set=distinct).to_numpy()
        codes = np.empty(len(distinct), dtype=np.int64)
        for at, value in enumerate(distinct.to_pylist()):
            if value not in self._code_of:
                self._code_of[value] = len(self._code_of)
                self._first_row.append(self._codes.rows + int((position == at).argmax()))
                check_classes(len(self._code_of) - int(None in self._code_of))
            codes[at] = self._code_of[value]
        self._codes.append(codes[position])

    def finish(self) -> tuple[str, ...]:
        """Write y.npy and return the names of the classes."""
        self._codes.close()
        values = pa.array(self._code_of, type=self._type)
        numbers, classes = number_labels(values, lambda position: self._table.row(self._first_row[position]))
        codes = np.load(self._codes.path, mmap_mode="r")
        with NpyWriter(self._path, np.int64) as file:
            for piece in pieces(codes):
                file.append(numbers[piece])
                release(codes)
        self._codes.path.unlink()
        return classes
