"""The user's graph as a table of nodes and a table of edges, CSV or Parquet.

Nodes: an id column, an optional label column, and every other column is a feature; where there is none, nodes get
structural features (trainer.data.structural). Edges: two columns of ids and an
optional weight; other columns are ignored. Ids keep their type: in Parquet the column's, in CSV integers if every id of
the column is written as one ("7", but not "07" or "7.0"), else text. Empty labels and the integer -1 mean unlabelled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.data.sources.labels import LONG_LABEL, MAX_TEXT, encode_labels
from trainer.data.sources.table_file import Columns, TableFile
from trainer.errors import InvalidInput
from trainer.spec.data import FilesSpec

if TYPE_CHECKING:
    from trainer.data.graph import Graph


class Tables(NamedTuple):
    """Both tables, their headers read, and the columns that the spec speaks of."""

    nodes: TableFile
    edges: TableFile
    node_text: list[str]  # the id column and, if there is one, the label column
    features: list[str]
    label: str | None
    weight: str | None


class KnownEdges(NamedTuple):
    """Edges between nodes that exist, as rows of the node table."""

    edge_index: NDArray[np.int64]  # [2, E]
    weight: NDArray[np.float32] | None  # [E]
    dropped: int  # edges left out because an end is no node


def load(spec: FilesSpec) -> Graph:
    """Read `spec.nodes` and `spec.edges`. Millions of rows: all work is by column, none by row.

    Raises:
        InvalidInput: naming the file, the row as an editor shows it (see table_file) and what to change.
    """
    tables = open_tables(spec)
    ids, labels, x = _read_nodes(tables, spec)
    columns = tables.edges.read(**edge_columns(tables, spec))
    edges = known_edges(tables.edges, columns, lambda column: _positions(column, ids), tables, spec)
    y, classes = (None, None) if labels is None else labels
    from trainer.data.graph import Graph  # loads torch: not before the tables are known to be good

    return Graph.from_edges(
        edges.edge_index,
        x,
        num_nodes=len(ids),
        name=tables.nodes.path.stem,
        ids=ids.to_numpy() if pa.types.is_integer(ids.type) else ids.to_numpy().astype(np.str_),
        weight=edges.weight,
        y=y,
        classes=classes,
        directed=spec.directed,
        notes=dropped_notes(edges.dropped, tables),
    )


def open_tables(spec: FilesSpec) -> Tables:
    """Read both headers.

    Raises:
        InvalidInput: a file that is no table, or a column that is missing.
    """
    nodes = TableFile.open(Path(spec.nodes or ""), "nodes")
    edges = TableFile.open(Path(spec.edges or ""), "edges")
    nodes.require(spec.id_column, "id_column")
    edges.require(spec.source_column, "source_column")
    edges.require(spec.target_column, "target_column")
    label = _optional(nodes, spec.label_column, "label_column")
    weight = _optional(edges, spec.weight_column, "weight_column")
    text = [spec.id_column] if label in (None, spec.id_column) else [spec.id_column, str(label)]
    features = [name for name in nodes.columns if name not in text]
    return Tables(nodes, edges, text, features, label, weight)


def _optional(table: TableFile, column: str | None, key: str) -> str | None:
    """A column that may be absent under its default name; one that the user named must be there."""
    if column is not None and column != FilesSpec.model_fields[key].default:
        table.require(column, key)
    return column if column in table.columns else None


def _read_nodes(
    tables: Tables, spec: FilesSpec
) -> tuple[pa.ChunkedArray, tuple[NDArray[np.int64], tuple[str, ...]] | None, NDArray[np.float32] | None]:
    table = tables.nodes
    columns = table.read(text=tables.node_text, numbers=tables.features)
    ids = read_ids(table, spec.id_column, columns[spec.id_column])
    check_count(table, len(ids))
    _refuse_duplicates(table, ids)
    labels = None if tables.label is None else _labels(table, tables.label, columns[tables.label])
    return ids, labels, feature_matrix(columns, tables.features) if tables.features else None


def check_count(table: TableFile, num_nodes: int) -> None:
    """Refuse fewer than two nodes."""
    if num_nodes < 2:
        raise InvalidInput(f"{table.path}: has {num_nodes} nodes. Contrast needs at least 2: add rows.")


def feature_matrix(columns: Columns, features: list[str]) -> NDArray[np.float32]:
    """[rows, F]; takes the columns out of `columns`, so that the table is never held twice."""
    x = np.empty((len(columns[features[0]]), len(features)), dtype=np.float32)
    for position, name in enumerate(features):
        x[:, position] = columns.pop(name).to_numpy()
    return x


def read_ids(table: TableFile, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64 or string, without gaps: int64 where every id of the column (or part of it) can be one."""
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
    index = _first(pc.greater(pc.utf8_length(column), MAX_TEXT))
    if index is not None:
        raise InvalidInput(f"{table.row(index)}: the id has more than {MAX_TEXT} characters. Shorten it.")
    index = _first(pc.ends_with(column, "\0"))
    if index is not None:  # numpy would not see it
        raise InvalidInput(f"{table.row(index)}: the id ends in a NUL character. Remove it.")
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
    raise duplicate_id(table, index, int(first[code[index]]), ids[index])


def duplicate_id(table: TableFile, index: int, earlier: int, name: object) -> InvalidInput:
    """What to raise where the record `index` has the id of the record `earlier`."""
    row = table.row(earlier).rpartition(", ")[2]
    return InvalidInput(f'{table.row(index)}: id "{name}" is already used in {row}. Ids must differ: rename one.')


def _labels(table: TableFile, name: str, column: pa.ChunkedArray) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    column = label_values(table, name, column)
    values = pc.unique(column)
    number, classes = number_labels(values, lambda position: table.row(pc.index(column, values[position]).as_py()))
    return number[pc.index_in(column, value_set=values).to_numpy()], classes


def label_values(table: TableFile, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Labels of a table or part of one as int64 or string, null where there is none.

    Raises:
        InvalidInput: a type that names no classes, a broken number, or a name that is too long.
    """
    kind = column.type
    if pa.types.is_floating(kind):  # how pandas writes integers with gaps
        whole = pc.if_else(pc.fill_null(pc.is_finite(column), False), column, None)
        index = _first(pc.fill_null(pc.not_equal(pc.floor(whole), whole), False))
        if index is not None:
            raise InvalidInput(
                f'{table.row(index)}: label {column[index]} in "{name}" is not a class. Use integers or text.'
            )
        return whole.cast(pa.int64(), safe=False)
    if pa.types.is_string(kind):
        index = _first(pc.fill_null(pc.greater(pc.utf8_length(column), MAX_TEXT), False))
        if index is not None:
            raise InvalidInput(f'{table.row(index)}: the label in "{name}" {LONG_LABEL}')
        return pc.if_else(pc.equal(column, ""), None, column)
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidInput(f'{table.path}: label column "{name}" has type {kind}. Use integers or text.')
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f'{table.path}: label column "{name}" holds integers beyond 63 bits. Use smaller ones, or text.'
        ) from error


def number_labels(values: pa.Array, where: Callable[[int], str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class number of each distinct label of `label_values`, in order of appearance, and the names of the classes.

    where: the place of the first node with the label at a position of `values`, for a message.
    """
    if pa.types.is_string(values.type):
        values = _integers_if_all(values)
    if pa.types.is_string(values.type):
        return encode_labels(pc.fill_null(values, "").to_numpy(zero_copy_only=False).astype(np.str_))
    values = pc.fill_null(values, -1)
    index = _first(pc.less(values, -1))
    if index is not None:
        raise InvalidInput(f"{where(index)}: label {values[index]}. Classes count from 0, and -1 means unlabelled.")
    return encode_labels(values.to_numpy())


def edge_columns(tables: Tables, spec: FilesSpec) -> dict[str, list[str]]:
    """What to read of the edge table, as arguments of `TableFile.read`."""
    ends = list(dict.fromkeys([spec.source_column, spec.target_column]))
    return {"text": ends, "numbers": [] if tables.weight is None else [tables.weight]}


def known_edges(
    table: TableFile,
    columns: Columns,
    find: Callable[[pa.ChunkedArray], NDArray[np.int64]],
    tables: Tables,
    spec: FilesSpec,
) -> KnownEdges:
    """Edges of a table or part of one.  find: rows of the nodes with these ids, -1 where there is none.

    Raises:
        InvalidInput: an id is missing, a weight is negative, or an end is no node and `spec.drop_unknown` is false.
    """
    named = [read_ids(table, name, columns[name]) for name in (spec.source_column, spec.target_column)]
    found = np.stack([find(column) for column in named])
    weights = None if tables.weight is None else columns[tables.weight].to_numpy()
    if weights is not None and (weights < 0).any():
        index = int((weights < 0).argmax())
        raise InvalidInput(f"{table.row(index)}: weight {weights[index]:g} is negative. Weights must be at least 0.")

    unknown = (found < 0).any(axis=0)
    if not unknown.any():
        return KnownEdges(found, weights, 0)
    if not spec.drop_unknown:
        index = int(unknown.argmax())
        column = named[0] if found[0, index] < 0 else named[1]
        raise InvalidInput(
            f'{table.row(index)}: node "{column[index]}" is not in {tables.nodes.path}. '
            "Add it there, or set data.files.drop_unknown=true to ignore such edges."
        )
    return KnownEdges(found[:, ~unknown], None if weights is None else weights[~unknown], int(unknown.sum()))


def dropped_notes(count: int, tables: Tables) -> list[str]:
    """What to tell of edges that were left out."""
    ending = f"edge{'s' * (count != 1)} to nodes that are not in {tables.nodes.path.name}"
    return [f"dropped {count} {ending}"] if count else []


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
