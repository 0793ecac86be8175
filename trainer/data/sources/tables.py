"""The user's graph as a table of nodes and a table of edges, CSV or Parquet.

Nodes: an id column, an optional label column, and every other column is a feature, or several if it holds lists; where
there is none, nodes get structural features (trainer.data.structural). Edges: two columns of ids, an optional weight;
other columns are ignored. Ids keep their type: in Parquet the column's, in CSV integers if every id of the column is
written as one ("7", but not "07" or "7.0"), else text. Empty labels and the integer -1 mean unlabelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.data.sources.identity import PANDAS_INDEX
from trainer.data.sources.labels import LONG_LABEL, MAX_TEXT, encode_labels
from trainer.data.sources.table_file import Columns, TableFile, with_widths
from trainer.data.sources.table_matrix import feature_matrix, width_of
from trainer.data.sources.table_report import MOST, explain
from trainer.data.sources.table_values import BadValues, read_values
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

    @property
    def num_features(self) -> int:
        """Columns of numbers, and the numbers of list columns."""
        return width_of(self.nodes, self.features)


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
    columns = read_table(tables.edges, **edge_columns(tables, spec))
    unknown = UnknownEnds(tables)
    edges = known_edges(tables.edges, columns, lambda column: _positions(column, ids), tables, spec, unknown)
    unknown.refuse()
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
    nodes = TableFile.open(Path(spec.nodes or ""), "nodes", [spec.id_column])
    edges = TableFile.open(Path(spec.edges or ""), "edges", [spec.source_column, spec.target_column])
    nodes.require(spec.id_column, "id_column")
    edges.require(spec.source_column, "source_column")
    edges.require(spec.target_column, "target_column")
    ignored = _ignored(nodes, spec)
    label = _optional(nodes, spec.label_column, "label_column")
    label = None if label in ignored else label
    weight = _optional(edges, spec.weight_column, "weight_column")
    text = [spec.id_column] if label in (None, spec.id_column) else [spec.id_column, str(label)]
    features = _feature_columns(nodes, text, ignored, spec)
    return Tables(with_widths(nodes, features), edges, text, features, label, weight)


def _ignored(nodes: TableFile, spec: FilesSpec) -> set[str]:
    ignored = set(spec.ignore_columns or ())
    _require_all(nodes, spec.ignore_columns or (), "ignore_columns")
    if spec.id_column in ignored:
        raise InvalidInput(
            f'data.files.ignore_columns: "{spec.id_column}" is the column of ids and cannot be ignored. Leave it out.'
        )
    return ignored


def _feature_columns(nodes: TableFile, text: list[str], ignored: set[str], spec: FilesSpec) -> list[str]:
    """Those that are named or, if none are, all that mean nothing else and are not ignored."""
    if spec.feature_columns is None:
        features = [name for name in nodes.columns if name not in text and name not in ignored]
        _refuse_index(nodes, features)
        return features
    _require_all(nodes, spec.feature_columns, "feature_columns")
    for name in spec.feature_columns:
        if name in ignored:
            raise InvalidInput(
                f'data.files: "{name}" is in both feature_columns and ignore_columns. Remove it from one of them.'
            )
        if name in text:
            raise InvalidInput(f'data.files.feature_columns: "{name}" is the column of ids or of labels. Leave it out.')
    named = set(spec.feature_columns)
    return [name for name in nodes.columns if name in named]


def _require_all(nodes: TableFile, names: Sequence[str], key: str) -> None:
    """As `TableFile.require` for thousands of names."""
    present = set(nodes.columns)
    for name in names:
        if name not in present:
            nodes.require(name, key)


def _refuse_index(nodes: TableFile, features: list[str]) -> None:
    """The row numbers that pandas writes unless told not to would be learned from like any feature."""
    name = next((name for name in features if PANDAS_INDEX.fullmatch(name)), None)
    if name is not None:
        what = f'column "{name}"' if name else "a column without a name"
        raise InvalidInput(
            f"{nodes.path}, row 1: {what} looks like the index that pandas writes. Save the table with index=False, "
            f'name it if it is a feature, or leave it out with data.files.ignore_columns=["{name}"].'
        )


def _optional(table: TableFile, column: str | None, key: str) -> str | None:
    """A column that may be absent under its default name; one that the user named must be there."""
    if column is not None and column != FilesSpec.model_fields[key].default:
        table.require(column, key)
    return column if column in table.columns else None


def _read_nodes(
    tables: Tables, spec: FilesSpec
) -> tuple[pa.ChunkedArray, tuple[NDArray[np.int64], tuple[str, ...]] | None, NDArray[np.float32] | None]:
    table = tables.nodes
    columns = read_table(table, text=tables.node_text, numbers=tables.features)
    ids = read_ids(table, spec.id_column, columns[spec.id_column])
    check_count(table, len(ids))
    _refuse_duplicates(table, ids)
    labels = None if tables.label is None else _labels(table, tables.label, columns[tables.label])
    return ids, labels, feature_matrix(table, columns, tables.features) if tables.features else None


def check_count(table: TableFile, num_nodes: int) -> None:
    """Refuse fewer than two nodes."""
    if num_nodes < 2:
        raise InvalidInput(f"{table.path}: has {num_nodes} nodes. Contrast needs at least 2: add rows.")


def read_table(table: TableFile, *, text: list[str], numbers: list[str]) -> Columns:
    """As `table_values.read_values`.

    Raises:
        InvalidInput: a row of the wrong length, a value that is no number, NaN, infinite or missing: all there are.
    """
    try:
        return read_values(table, text, numbers)
    except BadValues:
        raise explain(table, text, numbers) from None


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


class UnknownEnds:
    """Ends of edges that are no nodes, as they are met."""

    def __init__(self, tables: Tables):
        self._tables = tables
        self._count = 0
        self._first: list[tuple[int, str]] = []  # record and id

    def add(self, table: TableFile, named: list[pa.ChunkedArray], found: NDArray[np.int64]) -> None:
        """named, found: ids of both ends, and their rows or -1, in a table or part of one.  [2, E]"""
        wrong = np.flatnonzero((found < 0).any(axis=0))
        self._count += len(wrong)
        for index in wrong[: MOST - len(self._first)].tolist():
            end = 0 if found[0, index] < 0 else 1
            self._first.append((table.start + index, str(named[end][index])))

    def refuse(self) -> None:
        """Raises InvalidInput if there were any."""
        if not self._count:
            return
        table = self._tables.edges
        rows = table.rows([index for index, _ in self._first])
        said = [f'row {row} "{name}"' for row, (_, name) in zip(rows, self._first, strict=True)]
        more = f" and {self._count - len(said):,} more" if self._count > len(said) else ""
        others = f"There are {self._count:,} such edges: {', '.join(said)}{more}. " if self._count > 1 else ""
        raise InvalidInput(
            f'{table.path}, row {rows[0]}: node "{self._first[0][1]}" is not in {self._tables.nodes.path}. {others}'
            "Add it there, or set data.files.drop_unknown=true to ignore such edges."
        )


def known_edges(
    table: TableFile,
    columns: Columns,
    find: Callable[[pa.ChunkedArray], NDArray[np.int64]],
    tables: Tables,
    spec: FilesSpec,
    unknown: UnknownEnds,
) -> KnownEdges:
    """Edges of a table or part of one.  find: rows of the nodes with these ids, -1 where there is none.

    Ends that are no nodes go to `unknown` unless `spec.drop_unknown` says to leave such edges out; in both cases the
    other edges are returned.

    Raises:
        InvalidInput: an id is missing, or a weight is negative.
    """
    named = [read_ids(table, name, columns[name]) for name in (spec.source_column, spec.target_column)]
    found = np.stack([find(column) for column in named])
    weights = None if tables.weight is None else columns[tables.weight].to_numpy()
    if weights is not None and (weights < 0).any():
        index = int((weights < 0).argmax())
        raise InvalidInput(f"{table.row(index)}: weight {weights[index]:g} is negative. Weights must be at least 0.")

    known = (found >= 0).all(axis=0)
    if known.all():
        return KnownEdges(found, weights, 0)
    if not spec.drop_unknown:
        unknown.add(table, named, found)
    return KnownEdges(found[:, known], None if weights is None else weights[known], int((~known).sum()))


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
