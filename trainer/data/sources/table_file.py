"""One CSV or Parquet table: its kind, its columns, and where a record stands in the file.

Rows are counted as a spreadsheet or editor shows them: the header is row 1, the first node or edge is row 2. Blank
lines of a CSV file are skipped but counted; a value cannot hold a line break. Parquet has no header line; its first row
is called row 2 all the same, so that both forms of a table have one numbering.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.sources.table_lines import open_lines, read_header
from trainer.errors import InvalidInput

Columns = dict[str, pa.ChunkedArray]

TEXT_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
MAX_COLUMNS = 65_536  # every column costs time and memory of its own, however few rows there are


@dataclass(frozen=True)
class TableFile:
    """A table whose header has been read, or a part of its rows."""

    path: Path
    columns: tuple[str, ...]
    start: int = 0  # the records of the file before this part's first; messages then name the row of the file
    separator: str = ","  # of CSV
    widths: Mapping[str, int] = field(default_factory=dict)  # how many numbers each list of a Parquet column holds

    @classmethod
    def open(cls, path: Path, key: str, names: Collection[str] = ()) -> TableFile:
        """Read the header.  key: the spec's field, for the message; names: columns that must be there, see `require`.

        Raises:
            InvalidInput: no such file, another ending, no header, or a column name twice.
        """
        if path.suffix.lower() != ".parquet" and not path.name.lower().endswith(TEXT_ENDINGS):
            raise InvalidInput(
                f"{path}: unknown kind of table. data.files.{key} must end in .csv, .tsv, .csv.gz, .tsv.gz or .parquet."
            )
        if not path.is_file():
            raise InvalidInput(f"{path}: no such file. Check data.files.{key}.")
        try:
            columns, separator = (
                (tuple(pq.read_schema(path).names), ",") if _is_parquet(path) else read_header(path, names)
            )
        except (OSError, pa.ArrowException, csv.Error) as error:
            raise InvalidInput(f"{path}: cannot be read ({error}). Save it as UTF-8 CSV or as Parquet.") from error
        _check_names(path, columns)
        return cls(path, columns, separator=separator)

    @property
    def typed(self) -> bool:
        """Whether the file itself says what is text and what is a number."""
        return _is_parquet(self.path)

    def require(self, column: str, key: str) -> None:
        """Refuse a table without this column."""
        if column not in self.columns:
            raise InvalidInput(
                f'{self.path}, row 1: there is no column "{column}", only {listed(self.columns)}. '
                f"Rename one, or set data.files.{key}."
            )

    def part(self, start: int) -> TableFile:
        """The records from `start` (from 0) on."""
        return replace(self, start=start)

    def row(self, index: int) -> str:
        """Where the record `index` (from 0) of this part stands, for messages: "edges.csv, row 18"."""
        return f"{self.path}, row {self.rows([index])[0]}"

    def rows(self, indices: Sequence[int]) -> list[int]:
        """The rows of these records, in any order, as an editor counts them: one look at the file for all of them."""
        wanted = {index + self.start for index in indices}
        found = {index: index + 2 for index in wanted}
        if not self.typed and wanted:
            records, last = -1, max(wanted)  # the header is record -1
            with open_lines(self.path) as file:
                for line, content in enumerate(file, start=1):
                    if content.strip(b"\r\n"):
                        if records in wanted:
                            found[records] = line
                        if records == last:
                            break
                        records += 1
        return [found[index + self.start] for index in indices]

    def unreadable(self, error: Exception) -> InvalidInput:
        """What to raise for a file that its reader refuses."""
        remedy = "Write the Parquet file anew." if self.typed else "Save it as UTF-8 CSV or as Parquet."
        return InvalidInput(f"{self.path}: cannot be read ({error}). {remedy}")


def is_number(kind: pa.DataType) -> bool:
    """Whether a Parquet column of this type can be a feature or a weight; truth values count as 0 and 1."""
    types = pa.types
    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def is_numbers(kind: pa.DataType) -> bool:
    """Whether a Parquet column of this type holds lists of numbers, each of which is a feature."""
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and is_number(kind.value_type)


def listed(columns: Sequence[str], most: int = 8) -> str:
    """Names in quotes, for a message."""
    shown = ", ".join(f'"{name}"' for name in columns[:most])
    return shown + (f" and {len(columns) - most} more" if len(columns) > most else "")


def with_widths(table: TableFile, names: Sequence[str]) -> TableFile:
    """The table, knowing how long the lists of these columns are; the first row that has one decides."""
    if not table.typed:
        return table
    widths: dict[str, int] = {}
    try:
        with pq.ParquetFile(table.path) as file:
            schema = file.schema_arrow
            for name in names:
                kind = schema.field(name).type
                if pa.types.is_fixed_size_list(kind) and is_numbers(kind):
                    widths[name] = kind.list_size
                elif is_numbers(kind):
                    widths[name] = first_list(file, name)[1]
    except (OSError, pa.ArrowException) as error:
        raise table.unreadable(error) from error
    empty = [name for name, width in widths.items() if width < 1]
    if empty:
        raise InvalidInput(
            f"{table.path}: the lists of column {listed(empty)} are empty. Fill them, or leave the column out with "
            "data.files.ignore_columns."
        )
    total = sum(widths.values())
    if total > MAX_COLUMNS:
        raise InvalidInput(
            f"{table.path}: its lists hold {total:,} numbers a row, and a table may have {MAX_COLUMNS:,} features. "
            "Give wider features as an npz with sparse attr_* arrays."
        )
    return replace(table, widths=widths)


def first_list(file: pq.ParquetFile, name: str) -> tuple[int, int]:
    """Record and length of the first list that is neither missing nor empty; 0 and 0 if there is none."""
    start = 0
    for batch in file.iter_batches(batch_size=64, columns=[name]):
        for index, value in enumerate(batch.column(0)):
            if value.is_valid and len(value):
                return start + index, len(value)
        start += len(batch)
    return 0, 0


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _check_names(path: Path, columns: tuple[str, ...]) -> None:
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
