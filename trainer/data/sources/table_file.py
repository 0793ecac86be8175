"""One CSV or Parquet table, read by column with errors that a person can find in the file.

Rows are counted as a spreadsheet or editor shows them: the header is row 1, the first node or edge is row 2. Blank
lines of a CSV file are skipped but counted; a value cannot hold a line break. Parquet has no header line; its first row
is called row 2 all the same, so that both forms of a table have one numbering.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from trainer.errors import InvalidInput

Columns = dict[str, pa.ChunkedArray]

BLOCK_BYTES = 16 << 20  # read at a time; the longest row must fit, and one with MAX_COLUMNS features does
MAX_COLUMNS = 65_536  # every column costs time and memory of its own, however few rows there are
HEADER_CHARACTERS = 8 << 20  # of a CSV file's first row: 128 for each of so many columns
COLUMNS_AT_ONCE = 16_384  # converted from CSV: each takes some 10 KB meanwhile, and pyarrow aborts where it finds none


@dataclass(frozen=True)
class TableFile:
    """A table whose header has been read, or a part of its rows."""

    path: Path
    columns: tuple[str, ...]
    start: int = 0  # the records of the file before this part's first; messages then name the row of the file

    @classmethod
    def open(cls, path: Path, key: str) -> TableFile:
        """Read the header.  key: the spec's field, for the message.

        Raises:
            InvalidInput: no such file, another ending, no header, or a column name twice.
        """
        if path.suffix not in (".csv", ".parquet"):
            raise InvalidInput(f"{path}: unknown kind of table. data.files.{key} must end in .csv or .parquet.")
        if not path.is_file():
            raise InvalidInput(f"{path}: no such file. Check data.files.{key}.")
        try:
            columns = _csv_header(path) if path.suffix == ".csv" else tuple(pq.read_schema(path).names)
        except (OSError, pa.ArrowException, csv.Error) as error:
            raise InvalidInput(f"{path}: cannot be read ({error}). Save it as UTF-8 CSV or as Parquet.") from error
        if not columns:
            raise InvalidInput(f"{path}: is empty. Give it a header line with column names.")
        if len(columns) > MAX_COLUMNS:
            raise InvalidInput(
                f"{path}: has {len(columns):,} columns, and a table may have {MAX_COLUMNS:,}. "
                "Give wider features as an npz with sparse attr_* arrays."
            )
        if any("\ufffd" in name for name in columns):
            raise InvalidInput(f"{path}, row 1: not UTF-8. Save the file as UTF-8.")
        if any("\n" in name or "\r" in name for name in columns):
            raise InvalidInput(f"{path}, row 1: a column name holds a line break. Remove it.")
        name, count = Counter(columns).most_common(1)[0]
        if count > 1:
            raise InvalidInput(f'{path}, row 1: {count} columns are called "{name}". Rename all but one.')
        return cls(path, columns)

    @property
    def typed(self) -> bool:
        """Whether the file itself says what is text and what is a number."""
        return self.path.suffix == ".parquet"

    def require(self, column: str, key: str) -> None:
        """Refuse a table without this column."""
        if column not in self.columns:
            raise InvalidInput(
                f'{self.path}, row 1: there is no column "{column}", only {_listed(self.columns)}. '
                f"Rename one, or set data.files.{key}."
            )

    def read(self, *, text: list[str], numbers: list[str]) -> Columns:
        """Columns as they are called: `numbers` as float32 without gaps, `text` as string or, in Parquet, its own type.

        Raises:
            InvalidInput: a row of the wrong length, a value that is no number, NaN, infinite or missing.
        """
        if not self.typed:
            return self.parse_csv(None, text, numbers)
        try:
            table = pq.read_table(self.path, columns=[*text, *numbers])
        except (OSError, pa.ArrowException) as error:
            raise self.unreadable(error) from error
        return self.convert_parquet(table, text, numbers)

    def part(self, start: int) -> TableFile:
        """The records from `start` (from 0) on."""
        return replace(self, start=start)

    def row(self, index: int) -> str:
        """Where the record `index` (from 0) of this part stands, for messages: "edges.csv, row 18"."""
        index += self.start
        if self.typed:
            return f"{self.path}, row {index + 2}"
        records = -1  # the header is record -1
        with open(self.path, "rb") as file:
            for line, content in enumerate(file, start=1):
                if content.strip(b"\r\n"):
                    if records == index:
                        return f"{self.path}, row {line}"
                    records += 1
        return f"{self.path}, row {index + 2}"

    def parse_csv(self, lines: bytes | None, text: list[str], numbers: list[str]) -> Columns:
        """The columns of these lines, which hold no header; none: of the whole file. Fails as `read` does."""
        types = dict.fromkeys(text, pa.string()) | dict.fromkeys(numbers, pa.float32())
        found: Columns = {}
        for some in _groups([*text, *numbers]):
            try:
                table = self._convert(lines, {name: types[name] for name in some})
            except pa.ArrowInvalid as error:
                self._explain_csv(lines, types, error)
            found |= {name: table[name] for name in some}
        for name in numbers:
            self._refuse_gaps(name, found[name])
        return found

    def _convert(self, lines: bytes | None, types: dict[str, Any], **parsing: Any) -> pa.Table:
        """The columns that `types` names. A parallel reader, so its errors do not know where they are."""
        names = None if lines is None else list(self.columns)
        size = BLOCK_BYTES if lines is None else len(lines) + 1  # pyarrow sets aside several times as much
        return pacsv.read_csv(
            self.path if lines is None else pa.BufferReader(lines),
            read_options=pacsv.ReadOptions(column_names=names, use_threads=not parsing, block_size=size),
            parse_options=pacsv.ParseOptions(**parsing),
            convert_options=pacsv.ConvertOptions(column_types=types, include_columns=list(types)),
        )

    def _explain_csv(self, lines: bytes | None, types: dict[str, Any], error: pa.ArrowInvalid) -> NoReturn:
        """Read again, slowly, to learn which row is wrong, and in the first column where one is."""
        ragged: list[Any] = []

        def note(row: Any) -> str:
            ragged.append(row)
            return "error"

        def texts(name: str) -> pa.ChunkedArray:
            return self._convert(lines, {name: pa.binary()}, invalid_row_handler=note)[name]

        try:
            texts(self.columns[0])
            for some in _groups([name for name in self.columns if name in types]):
                if self._converts(lines, types, some):
                    continue
                while len(some) > 1:  # halving: as text, thousands of columns at once would take gigabytes
                    first, second = some[: len(some) // 2], some[len(some) // 2 :]
                    some = second if self._converts(lines, types, first) else first
                self._explain_column(some[0], texts(some[0]), is_number=types[some[0]] == pa.float32())
        except pa.ArrowInvalid:
            if not ragged:
                raise InvalidInput(f"{self.path}: cannot be read ({error}).") from error
            row = ragged[0]
            index = row.number - (2 if lines is None else 1)
            raise InvalidInput(
                f"{self.row(index)}: {row.actual_columns} values for {row.expected_columns} columns. "
                "Put quotes around values with commas, and leave missing ones empty between commas."
            ) from error
        raise InvalidInput(f"{self.path}: cannot be read ({error}).") from error

    def _converts(self, lines: bytes | None, types: dict[str, Any], names: list[str]) -> bool:
        try:
            self._convert(lines, {name: types[name] for name in names})
        except pa.ArrowInvalid:
            return False
        return True

    def _explain_column(self, name: str, column: pa.ChunkedArray, *, is_number: bool) -> None:
        """Raises InvalidInput for the first value, as bytes, that is no text or no number."""
        index = _first_failure(column, lambda part: part.cast(pa.string()))
        if index is not None:
            raise InvalidInput(f"{self.row(index)}: not UTF-8. Save the file as UTF-8.")
        index = _first_failure(column, _parse_numbers) if is_number else None
        if index is not None:
            self.refuse_text(name, index, column[index].as_py().decode())

    def convert_parquet(self, table: pa.Table, text: list[str], numbers: list[str]) -> Columns:
        """What `read` promises, from columns as they are in the file."""
        result = {}
        for name in text:
            column = table[name]
            plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            result[name] = plain.cast(pa.string()) if pa.types.is_large_string(plain.type) else plain
        for name in numbers:
            column = table[name]
            if not is_number(column.type):
                index = next((i for i, value in enumerate(column) if value.is_valid), 0)
                self.refuse_text(name, index, column[index].as_py() if len(column) else column.type)
            column = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
            result[name] = column.cast(pa.float32(), safe=False)
        for name in numbers:
            self._refuse_gaps(name, result[name])
        return result

    def _refuse_gaps(self, name: str, column: pa.ChunkedArray) -> None:
        finite = pc.fill_null(pc.is_finite(column), False)
        index = pc.index(finite, False).as_py()
        if index >= 0:
            value = column[index].as_py()
            what = "is empty or not a number" if value is None else f"is {value}"
            raise InvalidInput(
                f'{self.row(index)}: column "{name}" {what}. Fill in a finite number, or remove the row.'
            )

    def refuse_text(self, name: str, index: int, value: object) -> NoReturn:
        """A column of numbers holds this at record `index`."""
        raise InvalidInput(
            f'{self.row(index)}: column "{name}" holds "{str(value)[:60]}", which is not a number. '
            "Turn the column into numbers (0 and 1 for each category), or remove it."
        )

    def unreadable(self, error: Exception) -> InvalidInput:
        """What to raise for a Parquet file that its reader refuses."""
        return InvalidInput(f"{self.path}: cannot be read ({error}). Write the Parquet file anew.")


def is_number(kind: pa.DataType) -> bool:
    """Whether a Parquet column of this type can be a feature or a weight; truth values count as 0 and 1."""
    types = pa.types
    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _csv_header(path: Path) -> tuple[str, ...]:
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        return tuple(next((row for row in csv.reader(_first_lines(path, file)) if row), ()))


def _first_lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a CSV file for as long as its first row may be; a file without line ends is one line."""
    left = HEADER_CHARACTERS
    while line := file.readline(left + 1):
        if line.strip("\r\n"):
            left -= len(line)
        if left < 0:
            raise InvalidInput(
                f"{path}, row 1: has more than {HEADER_CHARACTERS:,} characters. "
                "Check that lines end, or give fewer columns with shorter names."
            )
        yield line


def _groups(names: list[str]) -> Iterator[list[str]]:
    """At least one, which has no names if there are none."""
    for start in range(0, max(1, len(names)), COLUMNS_AT_ONCE):
        yield names[start : start + COLUMNS_AT_ONCE]


def _parse_numbers(column: pa.ChunkedArray) -> None:
    """What the CSV reader does to a column of numbers: trim, leave gaps, convert."""
    trimmed = pc.utf8_trim_whitespace(column.cast(pa.string()))
    gaps = pc.is_in(trimmed, value_set=pa.array(pacsv.ConvertOptions().null_values))
    pc.if_else(gaps, None, trimmed).cast(pa.float32())


def _first_failure(column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], Any]) -> int | None:
    """Index of the first value that cannot be converted, by halving: about two conversions of the column in all."""
    if not _fails(column, convert):
        return None
    low, size = 0, len(column)
    while size > 1:
        half = size // 2
        if _fails(column.slice(low, half), convert):
            size = half
        else:
            low, size = low + half, size - half
    return low


def _fails(column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], Any]) -> bool:
    try:
        convert(column)
    except pa.ArrowInvalid:
        return True
    return False


def _listed(columns: tuple[str, ...]) -> str:
    shown = ", ".join(f'"{name}"' for name in columns[:8])
    return shown + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
