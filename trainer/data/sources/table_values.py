"""The values of a table's columns: numbers as float32 without gaps, text as it is.

Numbers in CSV are trimmed; true and false count as 1 and 0; where semicolons separate values, decimals may have a
comma. What cannot be read raises `BadValues`, which knows no place: `table_report` then looks through the file and says
all there is to mend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from trainer.data.sources.table_file import Columns, TableFile, is_number
from trainer.data.sources.table_lines import BLOCK_BYTES, is_packed, open_lines

COLUMNS_AT_ONCE = 16_384  # converted from CSV: each takes some 10 KB meanwhile, and pyarrow aborts where it finds none
TEXTS_AT_ONCE = 256  # columns of numbers held as text
GAPS = pa.array(pacsv.ConvertOptions().null_values)
_TRUE, _FALSE = "(?i)^true$", "(?i)^false$"
_DECIMAL_COMMA = r"^(-?\d*),(\d+(?:[eE][+-]?\d+)?)$"  # "-0,25", ",5", and "1,5e-07" as pandas writes small ones


class BadValues(Exception):
    """Some value is no number, missing or infinite, or a row has another length than the header."""


def read_values(table: TableFile, text: list[str], numbers: list[str]) -> Columns:
    """Columns as they are called: `numbers` as float32 without gaps, `text` as string or, in Parquet, its own type.

    Raises:
        BadValues: see there.
        InvalidInput: the file cannot be read at all.
    """
    if not table.typed:
        return parse_csv(table, None, text, numbers)
    try:
        found = pq.read_table(table.path, columns=[*text, *numbers])
    except (OSError, pa.ArrowException) as error:
        raise table.unreadable(error) from error
    return convert_parquet(table, found, text, numbers)


def parse_csv(table: TableFile, lines: bytes | None, text: list[str], numbers: list[str]) -> Columns:
    """The columns of these lines, which hold no header; none: of the whole file. Raises BadValues."""
    try:
        found: Columns = {}
        for some in in_groups(text, COLUMNS_AT_ONCE):
            found |= _columns(csv_columns(table, lines, dict.fromkeys(some, pa.string())), some)
        for some in in_groups(numbers, COLUMNS_AT_ONCE):
            found |= _numbers(table, lines, some)
    except pa.ArrowInvalid as error:
        raise BadValues from error
    except OSError as error:
        raise table.unreadable(error) from error
    _check_finite(found[name] for name in numbers)
    return found


def csv_columns(table: TableFile, lines: bytes | None, types: Mapping[str, Any], **parsing: Any) -> pa.Table:
    """The columns that `types` names. A parallel reader, so its errors do not know where they are."""
    names = None if lines is None else list(table.columns)
    size = BLOCK_BYTES if lines is None else len(lines) + 1  # pyarrow sets aside several times as much
    with _source(table, lines) as source:
        return pacsv.read_csv(
            source,
            read_options=pacsv.ReadOptions(column_names=names, use_threads=not parsing, block_size=size),
            parse_options=pacsv.ParseOptions(delimiter=table.separator, **parsing),
            convert_options=pacsv.ConvertOptions(column_types=types, include_columns=list(types)),
        )


@contextmanager
def _source(table: TableFile, lines: bytes | None) -> Iterator[Any]:
    """What pyarrow reads. It would unpack by itself, but not from a name in capitals, and with errors of its own."""
    if lines is not None:
        yield pa.BufferReader(lines)
    elif is_packed(table.path):
        with open_lines(table.path) as file:
            yield file
    else:
        yield table.path


def as_numbers(column: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    """Text as float32, null where there is a gap. Raises pa.ArrowInvalid for what is no number."""
    return plain_numbers(column, separator).cast(pa.float32())


def plain_numbers(column: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    """Text with numbers written as a CSV reader knows them, null for gaps; other text as it is."""
    plain = pc.utf8_trim_whitespace(column)
    plain = pc.if_else(pc.is_in(plain, value_set=GAPS), None, plain)
    for pattern, number in ((_TRUE, "1"), (_FALSE, "0")):
        plain = pc.replace_substring_regex(plain, pattern, number)
    return pc.replace_substring_regex(plain, _DECIMAL_COMMA, r"\1.\2") if separator == ";" else plain


def _numbers(table: TableFile, lines: bytes | None, names: list[str]) -> Columns:
    try:
        return _columns(csv_columns(table, lines, dict.fromkeys(names, pa.float32())), names)
    except pa.ArrowInvalid:  # truth values, perhaps
        found: Columns = {}
        for some in in_groups(names, TEXTS_AT_ONCE):
            texts = csv_columns(table, lines, dict.fromkeys(some, pa.string()))
            found |= {name: as_numbers(texts[name], table.separator) for name in some}
        return found


def convert_parquet(table: TableFile, found: pa.Table, text: list[str], numbers: list[str]) -> Columns:
    """What `read_values` promises, from columns as they are in the file. A list column stays one, of float32.

    Raises:
        BadValues: see there.
    """
    result = {}
    for name in text:
        column = found[name]
        plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        result[name] = plain.cast(pa.string()) if pa.types.is_large_string(plain.type) else plain
    for name in numbers:
        result[name] = _lists(found[name], table.widths[name]) if name in table.widths else _floats(found[name])
    return result


def _floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not is_number(column.type):
        raise BadValues
    column = float32(column)
    _check_finite([column])
    return column


def float32(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A Parquet column of numbers; beyond the range of float32 they become infinite."""
    column = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
    return column.cast(pa.float32(), safe=False)


def _lists(column: pa.ChunkedArray, width: int) -> pa.ChunkedArray:
    if not pc.all(pc.equal(pc.fill_null(pc.list_value_length(column), -1), width), min_count=0).as_py():
        raise BadValues
    values = float32(pc.list_flatten(column))
    _check_finite([values])
    chunks = [pa.FixedSizeListArray.from_arrays(values.combine_chunks(), width)] if len(values) else []
    return pa.chunked_array(chunks, pa.list_(pa.float32(), width))


def _check_finite(columns: Any) -> None:
    for column in columns:
        if not pc.all(pc.fill_null(pc.is_finite(column), False), min_count=0).as_py():
            raise BadValues


def _columns(table: pa.Table, names: list[str]) -> Columns:
    return {name: table[name] for name in names}


def in_groups(names: list[str], most: int) -> Iterator[list[str]]:
    """The names, so many at a time."""
    for start in range(0, len(names), most):
        yield names[start : start + most]
