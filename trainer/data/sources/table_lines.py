"""The bytes of a CSV file by whole lines, also where it is compressed, and what separates its values.

A separator is believed if it makes columns of all names that must be there, then if the first row has as many values as
the header has names; of several, the one that gives the most.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from trainer.errors import InvalidInput

BLOCK_BYTES = 16 << 20  # read at a time; the longest row must fit, and one with table_file.MAX_COLUMNS features does
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEADER_CHARACTERS = 8 << 20  # of a CSV file's first row: 128 for each of MAX_COLUMNS columns
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}


@contextmanager
def open_lines(path: Path) -> Iterator[BinaryIO]:
    """The file as bytes, unpacked if its name ends in .gz.

    Raises:
        InvalidInput: what is read of it turns out to be damaged.
    """
    if not is_packed(path):
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as packed:
            yield cast("BinaryIO", packed)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"{path}: is a damaged gzip file ({error}). Compress it anew.") from error


def is_packed(path: Path) -> bool:
    """Whether the name says that the file is compressed."""
    return path.suffix.lower() == ".gz"


def read_header(path: Path, required: Collection[str] = ()) -> tuple[tuple[str, ...], str]:
    """Names of the columns of a CSV file, none if it is empty, and the separator.  required: names that must be there.

    Raises:
        InvalidInput: the first row is too long to be one, or the file is a damaged archive.
        OSError, csv.Error: it cannot be read.
    """
    with (
        open_lines(path) as lines,
        io.TextIOWrapper(lines, newline="", encoding="utf-8-sig", errors="replace") as file,
    ):
        header = _next_line(file)
        if len(header) > HEADER_CHARACTERS:
            raise InvalidInput(
                f"{path}, row 1: has more than {HEADER_CHARACTERS:,} characters. "
                "Check that lines end, or give fewer columns with shorter names."
            )
        row = _next_line(file)
    separator = _separator(header, row if len(row) <= HEADER_CHARACTERS else "", required)
    return tuple(_values(header, separator)), separator


def _next_line(file: io.TextIOWrapper) -> str:
    """The next line that is not blank, without its end; of one that is longer than a header may be, its beginning."""
    while line := file.readline(HEADER_CHARACTERS + 1):
        if line.strip("\r\n"):
            return line.rstrip("\r\n") if len(line) <= HEADER_CHARACTERS else line
    return ""


def _separator(header: str, row: str, required: Collection[str]) -> str:
    found = {mark: _values_if_read(header, mark) for mark in SEPARATORS if mark in header}
    likely = {mark: names for mark, names in found.items() if len(names) > 1}
    likely = {mark: names for mark, names in likely.items() if set(required) <= set(names)} or likely
    fitting = {mark: len(names) for mark, names in likely.items() if len(_values_if_read(row, mark)) == len(names)}
    return max(fitting, key=lambda mark: fitting[mark]) if fitting else next(iter(likely), ",")


def _values_if_read(line: str, separator: str) -> list[str]:
    """None where a value is longer than `csv` reads: pyarrow, which reads the table, takes longer ones."""
    try:
        return _values(line, separator)
    except csv.Error:
        return []


def _values(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def whole_lines(path: Path, block_bytes: int) -> Iterator[tuple[bytes, float]]:
    """Lines with their ends, about `block_bytes` at a time, less the header; and the share of the file up to there.

    At least one piece; a blank line stands for no rows.
    """
    pieces = _pieces(path, block_bytes)
    for lines, share in pieces:
        found = re.match(rb"[\r\n]*[^\r\n]+[\r\n]?", lines)
        if found:
            yield lines[found.end() :] or b"\n", share
            break
    yield from pieces


def _pieces(path: Path, block_bytes: int) -> Iterator[tuple[bytes, float]]:
    size = path.stat().st_size
    with open_lines(path) as file:
        on_disk = file.fileobj if isinstance(file, gzip.GzipFile) else file
        if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            file.seek(0)
        rest = b""
        while block := file.read(block_bytes):
            cut = 1 + (block.rfind(b"\n") if b"\n" in block else block.rfind(b"\r"))
            if cut == 0 and len(rest) > BLOCK_BYTES:
                raise InvalidInput(
                    f"{path}: a row has more than {BLOCK_BYTES >> 20} MB. Check that lines end, or use Parquet."
                )
            if cut > 0:
                left = len(block) - cut if on_disk is file else 0
                yield rest + block[:cut], (on_disk.tell() - left) / size
            rest = rest + block if cut == 0 else block[cut:]
        if rest:
            yield rest, 1.0
