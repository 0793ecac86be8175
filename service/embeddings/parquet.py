"""Tables for Arrow: a version as one Parquet file for download, and answers as Arrow streams.

pyarrow is loaded by the functions that need it: it takes a moment, and most requests do without.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from service.embeddings.layout import DOWNLOAD, IdType
from service.embeddings.parquet_room import WORK, ParquetRoom
from service.embeddings.table import Table
from trainer.files.atomic import sync
from trainer.files.mapped import release

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 250_000  # their ids and labels are Python objects for a moment
_INT64 = range(-(1 << 63), 1 << 63)


def parquet_file(table: Table, room: ParquetRoom | None = None) -> Path:
    """download.parquet of a version: columns id, vector (a list of dim float32) and, where there are any, label.

    Made by the first who asks; others who ask meanwhile wait for that one. It is there completely or not at all, and
    never changes, so that a broken download can go on, until it makes room for another. In memory: about one group of
    rows.

    Vectors are stored as they are: compressed (zstd, bytes split) they were 15 % smaller and took five times as long.

    Args:
        room: what it and those of other versions may take; none: anything.

    Raises:
        NoRoom: there is no room for it.
        OSError: it cannot be written, as on a full disk; or the version is deleted. Nothing of it stays.
    """
    path = table.directory / DOWNLOAD
    work = path.with_name(WORK)
    while not path.exists():
        descriptor = os.open(work, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # a process that dies lets go of it
            if not _is(work, descriptor):
                continue  # whoever had the lock has made it, or has given up and removed the file
            if path.exists():
                work.unlink()  # made just before this one was created
                continue
            try:
                os.truncate(descriptor, 0)
                if room is not None:
                    room.reserve(table, work)
                _write(table, work)
                os.fsync(descriptor)
                os.rename(work, path)
            except BaseException:
                work.unlink(missing_ok=True)
                raise
            sync(table.directory)
        finally:
            os.close(descriptor)
    return path


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write(table: Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = table.info
    fields = [
        ("id", pa.int64() if info.id_type == "int" else pa.string()),
        ("vector", pa.list_(pa.float32(), info.dim)),
    ]
    if table.labels is not None:
        fields.append(("label", pa.string()))
    schema = pa.schema(fields)
    compression = {"id": "zstd", "label": "zstd"}
    rows = min(_GROUP_ROWS, max(1, _GROUP_BYTES // (4 * info.dim)))
    with path.open("r+b") as file:
        with pq.ParquetWriter(file, schema, compression=compression, use_dictionary=["label"]) as writer:
            _write_groups(table, writer, schema, rows)
        file.truncate()  # of what was expected


def _write_groups(table: Table, writer: Any, schema: pa.Schema, rows: int) -> None:
    import pyarrow as pa

    info = table.info
    for start in range(0, info.rows, rows):
        table.files.check()
        some = np.arange(start, min(start + rows, info.rows))
        vectors = table.vectors[start : start + rows]
        columns: list[Any] = [pa.array(table.ids.ids_of(some), schema.field("id").type), _vectors(vectors)]
        if table.labels is not None:
            columns.append(_labels(table.labels[start : start + rows], info.classes or ()))
        writer.write_table(pa.table(columns, schema=schema), row_group_size=rows)
        release(vectors)


def _labels(numbers: NDArray[np.int32], classes: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    places = pa.array(numbers, mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(places, pa.array(classes, pa.string())).cast(pa.string())


def _vectors(vectors: NDArray[np.float32], unknown: NDArray[np.bool_] | None = None) -> pa.Array:
    """A list of dim numbers per row [n, dim], null for the unknown; shares the memory of `vectors`."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    mask = None if unknown is None or not unknown.any() else pa.array(unknown)
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=mask)


def arrow_stream(columns: Mapping[str, Any]) -> bytes:
    """An Arrow IPC stream of one batch.

    A column is an array [n], vectors [n, dim], a column of Arrow, or a list of ids (int64 if all of them are such
    integers, else text).
    """
    import pyarrow as pa

    batch = pa.table({name: _column(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_table(batch)
    return sink.getvalue().to_pybytes()


def ids_column(ids: Sequence[int | str], id_type: IdType) -> pa.Array:
    """Ids of a table as a column of that table's type, however many there are. Numbers may be given as text."""
    import pyarrow as pa

    return pa.array(map(int, ids), pa.int64()) if id_type == "int" else pa.array(map(str, ids), pa.string())


def names_column(numbers: NDArray[np.signedinteger], names: Sequence[int | str]) -> pa.Array:
    """The name of each number; their type is that of all names, whichever occur."""
    return _column(names).take(numbers)


def lookup_arrow(
    ids: Sequence[int | str], vectors: NDArray[np.float32], unknown: NDArray[np.bool_] | None = None
) -> bytes:
    """Arrow stream with columns id and vector, in the order of `ids`; the vector is null where `unknown`.

    Args:
        vectors: [n, dim]; rows of unknown ids may hold anything.
    """
    return arrow_stream({"id": ids, "vector": _vectors(vectors, unknown)})


def neighbors_arrow(
    queries: Sequence[int | str],
    ids: Sequence[Sequence[int | str]],
    scores: Sequence[NDArray[np.float32]],
    vectors: Sequence[NDArray[np.float32]] | None = None,
    *,
    query_type: IdType,
    id_type: IdType,
    dim: int,
) -> bytes:
    """Arrow stream with a row per neighbour: query, rank (from 1), id, score and, if given, vector.

    Args:
        queries: [q] what each query is called: an id, or its position.
        ids, scores, vectors: for each query its neighbours, best first, as many as it has.
        query_type, id_type, dim: what the columns are made for, so that they are the same if nothing is found.
    """
    counts = [len(some) for some in ids]
    columns: dict[str, Any] = {
        "query": ids_column(
            [query for query, count in zip(queries, counts, strict=True) for _ in range(count)], query_type
        ),
        "rank": np.concatenate(
            [np.arange(1, count + 1, dtype=np.int32) for count in counts] or [np.empty(0, np.int32)]
        ),
        "id": ids_column([node for some in ids for node in some], id_type),
        "score": np.concatenate([np.asarray(some, np.float32) for some in scores] or [np.empty(0, np.float32)]),
    }
    if vectors is not None:
        columns["vector"] = np.concatenate([np.empty((0, dim), np.float32), *vectors])
    return arrow_stream(columns)


def _column(values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray):
        return _vectors(values) if values.ndim == 2 else pa.array(values)
    if all(type(value) is int and value in _INT64 for value in values):
        return pa.array(values, pa.int64())
    # Half a character, which JSON can carry and UTF-8 cannot, is shown as what it was in JSON.
    texts = [None if value is None else str(value).encode("utf-8", "backslashreplace").decode() for value in values]
    return pa.array(texts, pa.string())
