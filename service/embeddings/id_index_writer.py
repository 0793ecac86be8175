"""Writes the files by which service.embeddings.id_index finds a row, from the ids of an export.

Ids are read a line at a time. What must be sorted is held as numbers, about 40 bytes a row; the texts never are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.embeddings import id_index
from service.embeddings.layout import IdType, ids_file_of
from trainer.errors import InvalidInput
from trainer.files.mapped import map_bytes, map_npy, pieces, release
from trainer.files.npy import write_npy

Progress = Callable[[str, float], None]
_LINES = 1 << 16


def write_id_files(directory: Path, id_type: IdType, rows: int, progress: Progress | None = None) -> list[str]:
    """Fill `directory`, which has ids.npy or ids.json already; names of the files written.

    Raises:
        InvalidInput: not `rows` ids of that type, or an id twice.
        OSError: they cannot be written.
    """
    if id_type == "int":
        return _number_files(directory, rows)
    return _text_files(directory, rows, progress)


def _number_files(directory: Path, rows: int) -> list[str]:
    name = ids_file_of("int")
    try:
        numbers: NDArray[np.int64] = map_npy(directory / name, "<i8", (rows,))
    except ValueError as error:
        raise InvalidInput(f"{error}. Export the embeddings again.") from error
    if _ascends(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise _twice(name, int(ordered[twice[0]]), order[twice[0]], order[twice[0] + 1])
    write_npy(directory / id_index.SORTED, ordered)
    write_npy(directory / id_index.ORDER, order.astype(id_index.order_type(rows)))
    release(numbers)
    return [id_index.SORTED, id_index.ORDER]


def _ascends(numbers: NDArray[np.int64]) -> bool:
    last = None
    for piece in pieces(numbers):
        if (last is not None and piece[0] <= last) or not np.all(piece[1:] > piece[:-1]):
            return False
        last = int(piece[-1])
        release(piece)
    return True


def _text_files(directory: Path, rows: int, progress: Progress | None) -> list[str]:
    name = ids_file_of("str")
    hashes, offsets = np.empty(rows, np.uint64), np.zeros(rows + 1, np.int64)
    done = 0
    with (directory / id_index.TEXT).open("wb") as file:
        for texts in _read_texts(directory / name):
            count = len(texts)
            if done + count > rows:
                raise InvalidInput(f"{name}: more than {rows} ids, which is how many vectors there are. Export again.")
            try:
                encoded = [text.encode() for text in texts]
            except UnicodeEncodeError as error:
                raise InvalidInput(f"{name}: an id is not valid text ({error}). Give the nodes other ids.") from error
            file.write(b"".join(encoded))
            hashes[done : done + count] = np.frombuffer(b"".join(map(id_index.digest, encoded)), "<u8")
            offsets[done + 1 : done + count + 1] = np.cumsum([len(text) for text in encoded]) + offsets[done]
            done += count
            if progress is not None:
                progress("ids", done / rows)
    if done != rows:
        raise InvalidInput(f"{name}: {done} ids for {rows} vectors. Export the embeddings again.")
    write_npy(directory / id_index.OFFSETS, offsets)
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    write_npy(directory / id_index.HASHES, hashes)
    write_npy(directory / id_index.ORDER, order.astype(id_index.order_type(rows)))
    _check_distinct(name, directory / id_index.TEXT, offsets, hashes, order)
    return [id_index.TEXT, id_index.OFFSETS, id_index.HASHES, id_index.ORDER]


def _check_distinct(
    name: str, texts: Path, offsets: NDArray[np.int64], hashes: NDArray[np.uint64], order: NDArray[Any]
) -> None:
    """Equal ids have equal hashes, so only those are compared."""
    stored = map_bytes(texts).data
    seen: dict[bytes, int] = {}
    before = -1
    for place in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        if place != before + 1:
            seen.clear()  # another hash
        for row in order[place : place + 2].tolist():
            text = bytes(stored[offsets[row] : offsets[row + 1]])
            if seen.setdefault(text, row) != row:
                raise _twice(name, text.decode(), seen[text], row)
        before = place


def _twice(name: str, node: int | str, first: int, second: int) -> InvalidInput:
    rows = f"{min(first, second)} and {max(first, second)}"
    return InvalidInput(f"{name}: rows {rows} have the same id {node!r}. Give every node an id of its own.")


def _read_texts(path: Path) -> Iterator[list[str]]:
    """The ids of a JSON list, some at a time: it is written an id to a line; any other form is read whole."""
    try:
        parts = _by_lines(path)
        first = next(parts)
    except _OtherForm:
        yield _whole(path)
        return
    except StopIteration:
        return
    try:
        yield from chain([first], parts)
    except _OtherForm as error:  # some ids are out already; no writer begins in one form and ends in another
        raise InvalidInput(f"{path.name}: {error}. Export the embeddings again.") from error


class _OtherForm(Exception):
    """Not the form that the trainer writes."""


def _by_lines(path: Path) -> Iterator[list[str]]:
    with path.open("rb") as file:  # bytes: a text file would take other marks than \n for ends of lines
        if file.readline(16) != b"[\n":
            raise _OtherForm("does not begin with [ on a line")
        number, ended, lines = 1, False, list[bytes]()
        for line in file:
            number += 1
            if line in (b"]\n", b"]"):
                ended = True
                break
            if len(lines) == _LINES:  # and another follows, so that these end with a comma
                yield _parse(lines, number, b",\n")
                lines = []
            lines.append(line)
        if not ended or file.read(1):
            raise _OtherForm("the list does not end with the file")
        if lines:
            yield _parse(lines, number, b"\n")


def _parse(lines: list[bytes], number: int, end: bytes) -> list[str]:
    """Lines `"id",` as texts.  end: of the last line."""
    joined = b"".join(lines)
    try:
        texts = json.loads(b"[" + joined.removesuffix(end) + b"]")
    except ValueError as error:
        raise _OtherForm(f"not an id to a line before line {number} ({error})") from error
    if not joined.endswith(end) or len(texts) != len(lines) or not all(type(text) is str for text in texts):
        raise _OtherForm(f"not a text to a line before line {number}")
    return texts


def _whole(path: Path) -> list[str]:
    try:
        texts = json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidInput(f"{path.name}: is not JSON ({error}). Export the embeddings again.") from error
    if not (isinstance(texts, list) and all(type(text) is str for text in texts)):
        raise InvalidInput(f"{path.name}: is not a list of texts. Export the embeddings again.")
    return texts
