"""The edge table, block by block: ends are looked up among the nodes and handed to the sorter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from trainer.data.importing.blocks import blocks
from trainer.data.importing.budget import Budget
from trainer.data.importing.edge_sort import EdgeSorter
from trainer.data.importing.nodes import Nodes
from trainer.data.sources.table_file import TableFile
from trainer.data.sources.tables import Tables, UnknownEnds, dropped_notes, edge_columns, known_edges
from trainer.spec.data import FilesSpec

LINE_BYTES = 8  # of an edge in CSV, at the least: an estimate that is too high costs a few more files
PACKED = 10  # how much smaller gzip makes a list of edges, at the most


def spread_edges(
    tables: Tables, spec: FilesSpec, nodes: Nodes, scratch: Path, budget: Budget, tell: Callable[[float], None]
) -> tuple[EdgeSorter, list[str]]:
    """Read all edges into a sorter; what it writes needs no ids any more. Also returns notes.

    Raises:
        InvalidInput: as `trainer.data.sources.tables.load`.
    """
    sorter = EdgeSorter(
        scratch,
        nodes.num_nodes,
        weighted=tables.weight is not None,
        directed=spec.directed,
        expected=_expected(tables.edges),
        at_once=budget.sort_edges,
    )
    dropped, unknown = 0, UnknownEnds(tables)
    read = blocks(
        tables.edges, **edge_columns(tables, spec), block_bytes=budget.block_bytes, scratch=scratch, tell=tell
    )
    for block in read:
        edges = known_edges(block.table, block.columns, nodes.rows.find, tables, spec, unknown)
        sorter.add(edges.edge_index, edges.weight)
        dropped += edges.dropped
        tell(block.share)
    unknown.refuse()
    return sorter, dropped_notes(dropped, tables)


def _expected(table: TableFile) -> int:
    if table.typed:
        return int(pq.read_metadata(table.path).num_rows)
    packed = PACKED if table.path.suffix.lower() == ".gz" else 1
    return table.path.stat().st_size * packed // LINE_BYTES
