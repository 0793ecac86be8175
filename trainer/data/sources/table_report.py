"""What is wrong with the values of a table, all of one kind in one message.

Looks through the whole file, some megabytes at a time, whichever way the table was being read when a bad value turned
up: so a graph that is loaded and one that is imported are refused in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.data.sources.table_file import TableFile, first_list, is_number
from trainer.data.sources.table_lines import BLOCK_BYTES, SEPARATORS, whole_lines
from trainer.data.sources.table_values import (
    TEXTS_AT_ONCE,
    as_numbers,
    csv_columns,
    float32,
    in_groups,
    plain_numbers,
)
from trainer.errors import InvalidInput

MOST = 20  # rows that a message lists, and columns
ROWS_AT_ONCE = 65_536  # of one Parquet column
_NUMBER = r"(?i)^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|^-?(inf|infinity|nan)$"
_INFINITE = r"(?i)^[+-]?(inf|infinity)$"

# What can be wrong, in the order in which it is told, and what to do about it.
_REMEDIES = {
    "text": "Turn the column into numbers (0 and 1 for each category), or leave it out with data.files.ignore_columns.",
    "length": "Give every row a list of the same length.",
    "overflow": "Numbers are kept as float32, up to 3.4e38: scale the column down.",
    "gap": "Fill in a finite number, or remove the row.",
}


@dataclass
class _Bad:
    """The bad values of one column."""

    count: int = 0
    rows: list[int] = field(default_factory=list)  # records, the first MOST
    first: str = ""  # what is wrong with the first

    def add(self, indices: Sequence[int], say: Callable[[int], str], start: int) -> None:
        """indices: of a block that begins at record `start`; say: what is wrong with one."""
        if indices and not self.rows:
            self.first = say(indices[0])
        self.count += len(indices)
        self.rows += [start + index for index in indices[: MOST - len(self.rows)]]


class _Report:
    """Bad values by kind and column, as they are found."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, _Bad]] = {kind: {} for kind in _REMEDIES}

    def add(self, kind: str, name: str, bad: pa.Array | pa.ChunkedArray, say: Callable[[int], str], start: int) -> None:
        """bad: truth values, one for each row of a block."""
        indices = pc.indices_nonzero(bad).to_pylist()
        if indices:
            self.found[kind].setdefault(name, _Bad()).add(indices, say, start)

    def error(self, table: TableFile) -> InvalidInput | None:
        """The refusal for the first kind of which there is something."""
        for kind, columns in self.found.items():
            if columns:
                order = {name: position for position, name in enumerate(table.columns)}
                return _refusal(table, kind, dict(sorted(columns.items(), key=lambda item: order[item[0]])))
        return None


def explain(table: TableFile, text: list[str], numbers: list[str]) -> InvalidInput:
    """The refusal of a table that raised BadValues."""
    if table.typed:
        try:
            report = _of_parquet(table, numbers)
        except (OSError, pa.ArrowException) as error:
            return table.unreadable(error)
        return report.error(table) or table.unreadable(ValueError("it changed while it was read"))
    try:
        return (
            _ragged(table)
            or _not_utf8(table, [*text, *numbers])
            or _of_csv(table, numbers).error(table)
            or table.unreadable(ValueError("it changed while it was read"))
        )
    except (OSError, pa.ArrowException) as error:
        return table.unreadable(error)


def _refusal(table: TableFile, kind: str, columns: dict[str, _Bad]) -> InvalidInput:
    name, bad = next(iter(columns.items()))
    lead = f'{table.row(bad.rows[0])}: column "{name}" {bad.first}.'
    total = sum(other.count for other in columns.values())
    return InvalidInput(f"{lead} {_others(table, columns, total)}{_REMEDIES[kind]}")


def _others(table: TableFile, columns: dict[str, _Bad], total: int) -> str:
    """Where else; nothing if there is only the one."""
    if total == 1:
        return ""
    parts: list[str] = []
    room = MOST
    for name, bad in columns.items():
        if room <= 0 or len(parts) == MOST:
            break
        rows = table.rows(bad.rows[:room])
        room -= len(rows)
        parts.append(f'column "{name}" in {_listed(rows, bad.count)}')
    hidden = len(columns) - len(parts)
    more = f" and {hidden} more column{'s' * (hidden > 1)}" if hidden else ""
    return f"There are {total:,} such values: {'; '.join(parts)}{more}. "


def _listed(rows: Sequence[int], count: int) -> str:
    shown = ", ".join(map(str, rows)) + (f" and {count - len(rows):,} more" if count > len(rows) else "")
    return f"row{'s' * (count > 1)} {shown}"


def _blocks(table: TableFile) -> Iterator[bytes]:
    return (lines for lines, _ in whole_lines(table.path, BLOCK_BYTES))


def _ragged(table: TableFile) -> InvalidInput | None:
    """Rows that have more or fewer values than the header."""
    bad, first, start = _Bad(), "", 0
    for lines in _blocks(table):
        found: list[Any] = []

        def note(row: Any, found: list[Any] = found) -> str:
            found.append(row)
            return "skip"

        whole = csv_columns(table, lines, {table.columns[0]: pa.binary()}, invalid_row_handler=note)
        if found and not first:
            first = f"{found[0].actual_columns} values for {found[0].expected_columns} columns"
        bad.add([row.number - 1 for row in found], lambda _: "", start)
        start += len(whole) + len(found)
    if not bad.count:
        return None
    mark = SEPARATORS[table.separator]
    some = f"There are {bad.count:,} such rows: {_listed(table.rows(bad.rows), bad.count)}. " if bad.count > 1 else ""
    return InvalidInput(
        f"{table.row(bad.rows[0])}: {first}. {some}Put quotes around values with {mark}s, and leave missing ones empty "
        f"between {mark}s."
    )


def _not_utf8(table: TableFile, names: list[str]) -> InvalidInput | None:
    """Rows with bytes that are no text."""
    start, bad = 0, set[int]()
    for lines in _blocks(table):
        rows = 0
        for some in in_groups(names, TEXTS_AT_ONCE):
            found = csv_columns(table, lines, dict.fromkeys(some, pa.binary()))
            rows = len(found)
            for name in some:
                if _fails(found[name], lambda column: column.cast(pa.string())):
                    bad |= {start + i for i, value in enumerate(found[name].to_pylist()) if not _is_utf8(value)}
        start += rows
    if not bad:
        return None
    rows_listed = table.rows(sorted(bad)[:MOST])
    others = f"There are {len(bad):,} such rows: {_listed(rows_listed, len(bad))}. " if len(bad) > 1 else ""
    return InvalidInput(f"{table.row(min(bad))}: not UTF-8. {others}Save the file as UTF-8.")


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_csv(table: TableFile, numbers: list[str]) -> _Report:
    report, start = _Report(), 0
    for lines in _blocks(table):
        rows = 0
        for some in in_groups(numbers, TEXTS_AT_ONCE):
            texts = csv_columns(table, lines, dict.fromkeys(some, pa.string()))
            rows = len(texts)
            for name in some:
                _judge_text(report, table, name, texts[name], start)
        start += rows
    return report


def _judge_text(report: _Report, table: TableFile, name: str, column: pa.ChunkedArray, start: int) -> None:
    def quoted(index: int) -> str:
        return f'holds "{str(column[index])[:60]}", which is not a number{_hint(str(column[index]))}'

    plain = plain_numbers(column, table.separator)
    text = pc.fill_null(pc.invert(pc.match_substring_regex(plain, _NUMBER)), False)
    at = None if pc.any(text, min_count=0).as_py() else _first_failure(column, lambda x: as_numbers(x, table.separator))
    if at is not None:  # some other way to be no number
        text = pa.array(np.arange(len(column)) == at)
    report.add("text", name, text, quoted, start)
    readable = as_numbers(pc.if_else(text, None, column), table.separator)
    infinite = pc.match_substring_regex(pc.fill_null(plain, ""), _INFINITE)
    _judge_numbers(report, name, readable, column, pc.invert(infinite), text, start)


def _judge_numbers(
    report: _Report, name: str, numbers: Any, written: Any, is_finite: Any, others: Any, start: int
) -> None:
    """Gaps and what is infinite.

    Args:
        numbers: as float32.
        written: the values as in the file.
        is_finite: whether what is written there is.
        others: places that are told already.
    """

    def gap(index: int) -> str:
        value = numbers[index].as_py()
        return "is empty or not a number" if value is None or value != value else f"is {value}"

    overflow = pc.and_(pc.fill_null(pc.is_inf(numbers), False), is_finite)
    report.add("overflow", name, overflow, lambda index: f'overflows: it holds "{str(written[index])[:60]}"', start)
    missing = pc.invert(pc.fill_null(pc.is_finite(numbers), False))
    report.add("gap", name, pc.and_not(pc.and_not(missing, overflow), others), gap, start)


def _hint(text: str) -> str:
    return " (decimals are written with a point)" if text.count(",") == 1 and text.replace(",", "").isdigit() else ""


def _of_parquet(table: TableFile, numbers: list[str]) -> _Report:
    report = _Report()
    with pq.ParquetFile(table.path) as file:
        schema = file.schema_arrow
        for name in numbers:
            kind = schema.field(name).type
            judge = (
                _list_judge(file, name)
                if name in table.widths
                else _judge_column
                if is_number(kind)
                else _judge_foreign
            )
            start = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[name]):
                judge(report, table, name, batch.column(0), start)
                start += len(batch)
            if judge is _judge_foreign and name not in report.found["text"]:  # all of it is empty
                said = f"has type {kind}, which is not a number"
                report.found["text"][name] = _Bad(1, [0], said)
    return report


def _judge_foreign(report: _Report, table: TableFile, name: str, column: pa.Array, start: int) -> None:
    """A column of another type than numbers."""
    report.add(
        "text", name, column.is_valid(),
        lambda index: f'holds "{str(column[index].as_py())[:60]}", which is not a number', start,
    )  # fmt: skip


def _judge_column(report: _Report, table: TableFile, name: str, column: pa.Array, start: int) -> None:
    numbers, none = float32(column), pa.array([False] * len(column), pa.bool_())
    finite = pc.fill_null(pc.is_finite(column), False) if pa.types.is_floating(column.type) else column.is_valid()
    _judge_numbers(report, name, numbers, column, finite, none, start)


def _list_judge(file: pq.ParquetFile, name: str) -> Callable[..., None]:
    """`_judge_lists`, knowing which row all others must be as long as."""
    return partial(_judge_lists, first=first_list(file, name)[0])


def _judge_lists(report: _Report, table: TableFile, name: str, column: pa.Array, start: int, *, first: int) -> None:
    width = table.widths[name]
    length = pc.if_else(column.is_valid(), pc.list_value_length(column), 0)
    wrong = pc.not_equal(length, width)

    def other_length(index: int) -> str:
        count = length[index].as_py()
        row = table.rows([first])[0]
        return f"holds {count or 'no'} number{'s' * (count != 1)}, but row {row} holds {width}"

    report.add("length", name, wrong, other_length, start)
    good = pc.indices_nonzero(pc.invert(wrong))
    written = pc.list_flatten(column.take(good))
    finite = pc.fill_null(pc.is_finite(float32(written)), False)
    real = pc.fill_null(pc.is_finite(written), False) if pa.types.is_floating(written.type) else written.is_valid()
    overflow, gap = pc.and_not(real, finite), pc.invert(real)

    def rows_of(values: pa.Array) -> pa.Array:
        at = pc.unique(pc.divide(pc.indices_nonzero(values), width))
        return pc.is_in(pa.array(np.arange(len(column))), value_set=good.take(at).cast(pa.int64()))

    def overflowing(index: int) -> str:
        values = pc.filter(column[index].values, pc.is_inf(float32(column[index].values)))
        value = next(value for value in values if np.isfinite(float(value.as_py())))
        return f'overflows: it holds "{str(value)[:60]}"'

    report.add("overflow", name, rows_of(overflow), overflowing, start)
    report.add("gap", name, rows_of(gap), lambda index: "holds a number that is missing or not finite", start)


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
