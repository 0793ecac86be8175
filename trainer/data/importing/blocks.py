"""A CSV or Parquet table in blocks of rows: the columns that `read_values` gives, a few megabytes at a time.

CSV is cut after line ends here rather than by pyarrow's streaming reader, which reads 32 blocks ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.data.importing.parquet import parquet_pieces
from trainer.data.sources.table_file import Columns, TableFile
from trainer.data.sources.table_lines import whole_lines
from trainer.data.sources.table_report import explain
from trainer.data.sources.table_values import BadValues, parse_csv


class Block(NamedTuple):
    """Successive rows of a table."""

    table: TableFile  # begins at the block's first row, so that messages name the file's rows
    columns: Columns
    rows: int
    share: float  # of the file that has been read with it


def blocks(
    table: TableFile, *, text: list[str], numbers: list[str], block_bytes: int, scratch: Path,
    tell: Callable[[float], None],
) -> Iterator[Block]:  # fmt: skip
    """One or more blocks; the only one has no rows if the table has none.  text, numbers: as for `read_values`.

    scratch: a directory for what a wide Parquet table needs on the way; `tell` is called while that is written.

    Raises:
        InvalidInput: as `trainer.data.sources.tables.load`.
    """
    try:
        yield from _blocks(table, text, numbers, block_bytes, scratch, tell)
    except BadValues:
        raise explain(table, text, numbers) from None


def _blocks(
    table: TableFile, text: list[str], numbers: list[str], block_bytes: int, scratch: Path,
    tell: Callable[[float], None],
) -> Iterator[Block]:  # fmt: skip
    start = 0
    if table.typed:
        for columns, share in parquet_pieces(table, text, numbers, block_bytes=block_bytes, scratch=scratch, tell=tell):
            rows = len(columns[text[0]])
            yield Block(table.part(start), columns, rows, share)
            start += rows
        return
    for lines, share in whole_lines(table.path, block_bytes):
        part = table.part(start)
        columns = parse_csv(part, lines, text, numbers)
        rows = len(columns[text[0]])
        yield Block(part, columns, rows, share)
        start += rows
