"""A CSV or Parquet table in blocks of rows: the columns that `TableFile.read` gives, a few megabytes at a time.

CSV is cut after line ends here rather than by pyarrow's streaming reader, which reads 32 blocks ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.data.importing.parquet import parquet_pieces
from trainer.data.sources.table_file import BLOCK_BYTES, Columns, TableFile
from trainer.errors import InvalidInput

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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
    """One or more blocks; the only one has no rows if the table has none.  text, numbers: as for `TableFile.read`.

    scratch: a directory for what a wide Parquet table needs on the way; `tell` is called while that is written.

    Raises:
        InvalidInput: as `TableFile.read`. If several rows are wrong, one of an earlier block is named.
    """
    start = 0
    if table.typed:
        for columns, share in parquet_pieces(table, text, numbers, block_bytes=block_bytes, scratch=scratch, tell=tell):
            rows = len(columns[text[0]])
            yield Block(table.part(start), columns, rows, share)
            start += rows
        return
    for lines, share in _without_header(_whole_lines(table, block_bytes)):
        part = table.part(start)
        columns = part.parse_csv(lines, text, numbers)
        rows = len(columns[text[0]])
        yield Block(part, columns, rows, share)
        start += rows


def _whole_lines(table: TableFile, block_bytes: int) -> Iterator[tuple[bytes, float]]:
    """Lines with their ends, about `block_bytes` at a time, and the share of the file up to there."""
    size = table.path.stat().st_size
    with table.path.open("rb") as file:
        if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            file.seek(0)
        rest = b""
        while block := file.read(block_bytes):
            cut = 1 + (block.rfind(b"\n") if b"\n" in block else block.rfind(b"\r"))
            if cut == 0 and len(rest) > BLOCK_BYTES:
                raise InvalidInput(
                    f"{table.path}: a row has more than {BLOCK_BYTES >> 20} MB. Check that lines end, or use Parquet."
                )
            if cut > 0:
                yield rest + block[:cut], (file.tell() - len(block) + cut) / size
            rest = rest + block if cut == 0 else block[cut:]
        if rest:
            yield rest, 1.0


def _without_header(pieces: Iterator[tuple[bytes, float]]) -> Iterator[tuple[bytes, float]]:
    """The same lines less the first that is not blank. At least one piece; a blank line stands for no rows."""
    for lines, share in pieces:
        found = re.match(rb"[\r\n]*[^\r\n]+[\r\n]?", lines)
        if found:
            yield lines[found.end() :] or b"\n", share
            break
    yield from pieces
