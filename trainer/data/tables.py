"""The user's graph as a table of nodes and a table of edges, CSV or Parquet.

Nodes: an id column, an optional label column, and every other column is a feature. Edges: two columns of ids and an
optional weight; other columns are ignored. Ids keep their type: in Parquet the column's, in CSV integers if every id of
the column is written as one ("7", but not "07" or "7.0"), else text. Empty labels and the integer -1 mean unlabelled.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.config import FilesSpec
from trainer.data.labels import encode_labels
from trainer.data.table_file import TableFile
from trainer.errors import InvalidInput
from trainer.graph import Graph

MAX_ID_LENGTH = 256  # numpy gives every id the width of the longest


def load(spec: FilesSpec) -> Graph:
    """Read `spec.nodes` and `spec.edges`. Millions of rows: all work is by column, none by row.

    Raises:
        InvalidInput: naming the file, the row as an editor shows it (see table_file) and what to change.
    """
    nodes = TableFile.open(Path(spec.nodes or ""), "nodes")
    edges = TableFile.open(Path(spec.edges or ""), "edges")
    nodes.require(spec.id_column, "id_column")
    edges.require(spec.source_column, "source_column")
    edges.require(spec.target_column, "target_column")
    label = _optional(nodes, spec.label_column, "label_column")
    weight = _optional(edges, spec.weight_column, "weight_column")

    ids, labels, x = _read_nodes(nodes, spec.id_column, label)
    edge_index, weights, notes = _read_edges(edges, nodes, ids, weight, spec)
    y, classes = (None, None) if labels is None else labels
    return Graph.from_edges(
        edge_index,
        x,
        name=nodes.path.stem,
        ids=ids.to_numpy() if pa.types.is_integer(ids.type) else ids.to_numpy().astype(np.str_),
        weight=weights,
        y=y,
        classes=classes,
        directed=spec.directed,
        notes=notes,
    )


def _optional(table: TableFile, column: str | None, key: str) -> str | None:
    """A column that may be absent under its default name; one that the user named must be there."""
    if column is not None and column != FilesSpec.model_fields[key].default:
        table.require(column, key)
    return column if column in table.columns else None


def _read_nodes(
    table: TableFile, id_column: str, label: str | None
) -> tuple[pa.ChunkedArray, tuple[NDArray[np.int64], tuple[str, ...]] | None, NDArray[np.float32]]:
    text = [id_column] if label in (None, id_column) else [id_column, str(label)]
    features = [name for name in table.columns if name not in text]
    if not features:
        raise InvalidInput(f"{table.path}, row 1: no feature columns. Add at least one column of numbers.")
    columns = table.read(text=text, numbers=features)
    ids = _ids(table, id_column, columns[id_column])
    if len(ids) < 2:
        raise InvalidInput(f"{table.path}: has {len(ids)} nodes. Contrast needs at least 2: add rows.")
    _refuse_duplicates(table, ids)
    labels = None if label is None else _labels(table, label, columns[label])
    x = np.empty((len(ids), len(features)), dtype=np.float32)
    for position, name in enumerate(features):
        x[:, position] = columns.pop(name).to_numpy()  # pop: never hold the table twice
    return ids, labels, x


def _ids(table: TableFile, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64 or string, without gaps."""
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        raise InvalidInput(f'{table.path}: column "{name}" has type {column.type}. Ids must be integers or text.')
    empty = pc.is_null(column)
    if pa.types.is_string(column.type):
        empty = pc.or_(empty, pc.equal(pc.fill_null(column, ""), ""))
    index = _first(empty)
    if index is not None:
        raise InvalidInput(f'{table.row(index)}: column "{name}" is empty. Fill in an id, or remove the row.')
    if pa.types.is_integer(column.type):
        return _cast_or(column, pa.int64(), pa.string())
    index = _first(pc.greater(pc.utf8_length(column), MAX_ID_LENGTH))
    if index is not None:
        raise InvalidInput(f"{table.row(index)}: the id has more than {MAX_ID_LENGTH} characters. Shorten it.")
    return column if table.typed else _integers_if_all(column)


def _integers_if_all(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as int64 if that loses nothing: each value is written as an integer prints."""
    plain = pc.match_substring_regex(column, "^(0|-?[1-9][0-9]{0,18})$")
    return _cast_or(column, pa.int64(), pa.string()) if pc.all(plain, min_count=0).as_py() else column


def _cast_or(column: pa.ChunkedArray, wanted: pa.DataType, otherwise: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:  # beyond 63 bits
        return column.cast(otherwise)


def _refuse_duplicates(table: TableFile, ids: pa.ChunkedArray) -> None:
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    code = pc.index_in(ids, value_set=pc.unique(ids)).to_numpy()
    _, first = np.unique(code, return_index=True)
    index = int(np.setdiff1d(np.arange(len(code)), first)[0])
    earlier = table.row(int(first[code[index]])).rpartition(", ")[2]
    raise InvalidInput(
        f'{table.row(index)}: id "{ids[index]}" is already used in {earlier}. Ids must differ: rename one.'
    )


def _labels(table: TableFile, name: str, column: pa.ChunkedArray) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    kind = column.type
    if pa.types.is_floating(kind):  # how pandas writes integers with gaps
        whole = pc.if_else(pc.fill_null(pc.is_finite(column), False), column, None)
        index = _first(pc.fill_null(pc.not_equal(pc.floor(whole), whole), False))
        if index is not None:
            raise InvalidInput(
                f'{table.row(index)}: label {column[index]} in "{name}" is not a class. Use integers or text.'
            )
        column = whole.cast(pa.int64(), safe=False)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_string(kind):
        column = _integers_if_all(pc.if_else(pc.equal(column, ""), None, column))
    elif not pa.types.is_null(kind):
        raise InvalidInput(f'{table.path}: label column "{name}" has type {kind}. Use integers or text.')
    if pa.types.is_string(column.type):
        column = pc.fill_null(column, "")
    else:
        column = pc.fill_null(column.cast(pa.int64()), -1)
        index = _first(pc.less(column, -1))
        if index is not None:
            raise InvalidInput(
                f"{table.row(index)}: label {column[index]}. Classes count from 0, and -1 means unlabelled."
            )
    values = pc.unique(column)  # few: numpy sorts these instead of all rows
    known = values.to_numpy(zero_copy_only=False)
    number, classes = encode_labels(known.astype(np.str_) if known.dtype == object else known)
    return number[pc.index_in(column, value_set=values).to_numpy()], classes


def _read_edges(
    table: TableFile, nodes: TableFile, ids: pa.ChunkedArray, weight: str | None, spec: FilesSpec
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None, list[str]]:
    ends = [spec.source_column, spec.target_column]
    columns = table.read(text=list(dict.fromkeys(ends)), numbers=[] if weight is None else [weight])
    named = [_ids(table, name, columns[name]) for name in ends]
    found = [_positions(column, ids) for column in named]
    weights = None if weight is None else columns[weight].to_numpy()
    if weights is not None and (weights < 0).any():
        index = int((weights < 0).argmax())
        raise InvalidInput(f"{table.row(index)}: weight {weights[index]:g} is negative. Weights must be at least 0.")

    unknown = (found[0] < 0) | (found[1] < 0)
    if not unknown.any():
        return np.stack(found), weights, []
    if not spec.drop_unknown:
        index = int(unknown.argmax())
        column = named[0] if found[0][index] < 0 else named[1]
        raise InvalidInput(
            f'{table.row(index)}: node "{column[index]}" is not in {nodes.path}. '
            "Add it there, or set data.files.drop_unknown=true to ignore such edges."
        )
    count = int(unknown.sum())
    note = f"dropped {count} edge{'s' * (count != 1)} to nodes that are not in {nodes.path.name}"
    return np.stack(found)[:, ~unknown], None if weights is None else weights[~unknown], [note]


def _positions(column: pa.ChunkedArray, ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Row of each id among the nodes, -1 where there is none. Columns of different types are compared as text."""
    if column.type != ids.type:
        column, ids = column.cast(pa.string()), ids.cast(pa.string())
    position = pc.fill_null(pc.index_in(column, value_set=ids), -1).to_numpy()
    result: NDArray[np.int64] = position.astype(np.int64)
    return result


def _first(mask: pa.ChunkedArray) -> int | None:
    index: int = pc.index(mask, True).as_py()
    return index if index >= 0 else None
