"""A Parquet table in pieces of rows. One that is wide is read a few columns at a time and put together on disk.

A reader holds the current page and dictionary of every column it reads, 2 to 3 MB each in files as pyarrow writes them:
hundreds of columns at once would be a gigabyte, however few rows are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.data.sources.table_file import Columns, TableFile, is_number
from trainer.data.sources.table_matrix import feature_matrix, matrix_columns, width_of
from trainer.data.sources.table_values import BadValues, convert_parquet
from trainer.files.mapped import release
from trainer.files.npy import NpyWriter

NUMBER_BYTES, TEXT_BYTES = 8, 32  # of a value, guessed to choose how many rows make a piece
BUFFER_BYTES = (
    1 << 16
)  # read of a column at a time; without, each row group is read whole, and many files have just one
COLUMN_BYTES = 5 << 19  # that a reader holds of a long column
COLUMN_BLOCKS = 8  # that the columns read together may hold, in blocks


def parquet_pieces(
    table: TableFile, text: list[str], numbers: list[str], *, block_bytes: int, scratch: Path,
    tell: Callable[[float], None],
) -> Iterator[tuple[Columns, float]]:  # fmt: skip
    """Successive rows as from `read_values`, at least once, and the share of the file up to their end."""
    try:
        with pq.ParquetFile(table.path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            schema = file.schema_arrow  # made anew at each access: 35 ms for 50,000 columns
            if not all(name in table.widths or is_number(schema.field(name).type) for name in numbers):
                raise BadValues
            groups = _groups(file, numbers, block_bytes * COLUMN_BLOCKS)
            if len(groups) == 1:
                yield from _pieces(table, file, text, numbers, block_bytes)
            else:
                yield from _wide(table, file, text, groups, block_bytes, scratch, tell)
    except (OSError, pa.ArrowException) as error:
        raise table.unreadable(error) from error


def _pieces(
    table: TableFile, file: pq.ParquetFile, text: list[str], numbers: list[str], block_bytes: int
) -> Iterator[tuple[Columns, float]]:
    names = [*text, *numbers]
    rows = max(1, block_bytes // (NUMBER_BYTES * width_of(table, numbers) + TEXT_BYTES * len(text)))
    start, total = 0, file.metadata.num_rows
    for batch in file.iter_batches(batch_size=rows, columns=names, use_threads=False):
        columns = convert_parquet(table, pa.Table.from_batches([batch]), text, numbers)
        start += len(batch)
        yield columns, start / total
    if start == 0:
        schema = file.schema_arrow
        empty = pa.schema([schema.field(name) for name in names]).empty_table()
        yield convert_parquet(table, empty, text, numbers), 1.0


def _groups(file: pq.ParquetFile, numbers: list[str], most_bytes: int) -> list[list[str]]:
    """The columns of numbers, in order, as many together as may be read at once."""
    if not numbers or not file.metadata.num_row_groups:
        return [numbers]
    first = file.metadata.row_group(0)
    chunks = (first.column(position) for position in range(first.num_columns))
    held = {_column(chunk): min(COLUMN_BYTES, chunk.total_uncompressed_size) for chunk in chunks}
    groups: list[list[str]] = [[]]
    total = 0
    for name in numbers:
        total += held[name]
        if total > most_bytes and groups[-1]:
            groups.append([])
            total = held[name]
        groups[-1].append(name)
    return groups


def _column(chunk: pq.ColumnChunkMetaData) -> str:
    """The name of the column that a chunk belongs to; the chunk of a list column has the name of what is in it."""
    path: str = chunk.path_in_schema
    for inner in (".list.element", ".list.item", ".list.array"):
        path = path.removesuffix(inner)
    return path


def _wide(
    table: TableFile, file: pq.ParquetFile, text: list[str], groups: list[list[str]], block_bytes: int, scratch: Path,
    tell: Callable[[float], None],
) -> Iterator[tuple[Columns, float]]:  # fmt: skip
    """Write each group of columns to a file of its own, then walk through all of them side by side."""
    parts: list[NDArray[Any]] = []
    for number, group in enumerate(groups):
        path = scratch / f"columns.{number}.npy"
        with NpyWriter(path, np.float32, (width_of(table, group),)) as writer:
            for columns, _ in _pieces(table, file, [], group, block_bytes):
                writer.append(feature_matrix(table, columns, group))
                tell(0.0)
        parts.append(np.load(path, mmap_mode="r"))
    width = sum(width_of(table, group) for group in groups)
    start, per_row = 0, TEXT_BYTES + 4 * width
    for columns, share in _pieces(table, file, text, [], block_bytes * TEXT_BYTES // per_row):
        rows = len(columns[text[0]])
        for group, part in zip(groups, parts, strict=True):
            columns |= matrix_columns(table, np.array(part[start : start + rows]), group)
            release(part)
        yield columns, share
        start += rows
    for number in range(len(groups)):
        (scratch / f"columns.{number}.npy").unlink()
