"""Products of huge sparse rows with tables of rows, a bounded number of entries at a time.

An entry is an edge (or a non-zero feature). Entries are taken in *parts* that may begin and end within a row, so a hub
with a million in-edges costs no more memory than a million nodes with one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.data.features import csr
from trainer.data.graph import Graph
from trainer.export.scratch import Table
from trainer.files.mapped import take
from trainer.nn.sparse import row_of_entry

_TOUCH = 8 << 20  # bytes of edges that may be mapped while scattered ones are read
ENTRY_BYTES = 96  # an entry while its columns are sorted, made unique and multiplied, without the row it gathers


class Csr(NamedTuple):
    """A sparse matrix of the graph, perhaps mapped from files; values of None are ones."""

    indptr: Tensor  # [n + 1]
    columns: Tensor  # [nnz]
    values: Tensor | None  # [nnz]
    release: Callable[[], None]  # gives mapped pages back


class Part(NamedTuple):
    """Consecutive entries of a piece: they lie in its rows first to last - 1, the outer two perhaps incomplete."""

    first: int
    last: int
    pointer: Tensor  # [last - first + 1]
    columns: Tensor
    values: Tensor | None


class Source:
    """A table by node number, in the precision and on the device of the computation.

    Args:
        held: ascending nodes whose rows the table has; none: all, in order.
        like: a tensor of the wanted dtype and device.
        touch: bytes of the table that may be in memory; a table below that is read once and kept.
    """

    def __init__(self, table: Table, held: Tensor | None, like: Tensor, touch: int):
        self.table, self.held, self.like, self.touch = table, held, like, touch
        rows = table.rows
        self.width = rows.shape[1]
        self.row_bytes = self.width * (rows.element_size() + like.element_size() * (rows.dtype != like.dtype))
        self._space: Tensor | None = None
        self.resident: Tensor | None = None
        if len(rows) * self.row_bytes <= touch:
            self.resident = rows.to(like, copy=True)
            table.release()

    def take(self, nodes: Tensor) -> Tensor:
        """Rows of these ascending nodes.  [n] -> [n, width]."""
        if self.resident is not None:
            return self.resident[self._position(nodes).to(self.like.device)]
        return self.table.take(self._position(nodes), self.touch).to(self.like)

    def gather(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that contain those of all `nodes`, and for each node which row it is.  [n] -> [m, width], [n].

        The rows are overwritten by the next call: fresh memory would cost four times the copying (page faults).
        """
        if self.resident is not None:
            return self.resident, self._position(nodes)
        unique, which = torch.unique(nodes, return_inverse=True)  # ascending: the file is read in one direction, once
        if self._space is None or len(self._space) < len(unique):
            self._space = None  # before the larger one comes
            self._space = self.table.rows.new_empty(len(unique), self.width)
        out = self._space[: len(unique)]
        return self.table.take(self._position(unique), self.touch, out).to(self.like), which

    def _position(self, nodes: Tensor) -> Tensor:
        return nodes if self.held is None else torch.searchsorted(self.held, nodes)


def aggregate(graph: Graph, scale: Tensor, source: Source, nodes: Tensor, at_most: int) -> Tensor:
    """Â[nodes, :] @ source, Â = S (A + I) S with S = diag(scale).  Ascending nodes [n] -> [n, width]."""
    own = scale[nodes].unsqueeze(1).to(source.like)
    sums = own.new_zeros(len(nodes), source.width)
    for part in parts(adjacency(graph), nodes, at_most):
        rows, columns = source.gather(part.columns)
        values = scale[part.columns]
        if part.values is not None:
            values *= part.values
        _add_product(sums, part, columns, values, rows)
    return sums.addcmul_(own, source.take(nodes)).mul_(own)


def sparse_times(graph: Graph, weight: Tensor, nodes: Tensor, at_most: int) -> Tensor:
    """x[nodes] @ weight for CSR features.  Ascending nodes [n] -> [n, weight.shape[1]]."""
    matrix = Csr(graph.x.crow_indices(), graph.x.col_indices(), graph.x.values(), graph.release)
    sums = weight.new_zeros(len(nodes), weight.shape[1])
    for part in parts(matrix, nodes, at_most):
        assert part.values is not None
        _add_product(sums, part, part.columns, part.values, weight)
    return sums


def inverse_root_degrees(graph: Graph, dtype: torch.dtype, at_most: int) -> Tensor:
    """D^{-1/2} of the whole graph, D = 1 + weighted in-degree.  [N]."""
    if graph.weight is None:
        return graph.indptr.diff().add_(1).to(dtype).rsqrt_()
    degree = torch.ones(graph.num_nodes, dtype=torch.float64)
    for nodes in torch.arange(graph.num_nodes).split(at_most):
        for part in parts(adjacency(graph), nodes, at_most):
            assert part.values is not None
            into = degree[int(nodes[0]) + part.first : int(nodes[0]) + part.last]
            into.index_add_(0, row_of_entry(part.pointer), part.values.double())
    return degree.to(dtype).rsqrt_()


def closures(graph: Graph, nodes: range, hops: int, at_most: int) -> list[Tensor]:
    """Ascending nodes within `hops`, hops - 1, ..., 0 in-edges of `nodes`: what earlier layers must know."""
    reached = torch.zeros(graph.num_nodes, dtype=torch.bool)
    reached[nodes.start : nodes.stop] = True
    found = [torch.arange(nodes.start, nodes.stop)]
    for _ in range(hops):
        for piece in found[0].split(at_most):
            for part in parts(adjacency(graph), piece, at_most):
                reached[part.columns] = True
        found.insert(0, reached.nonzero().squeeze(1))
    return found


def adjacency(graph: Graph) -> Csr:
    return Csr(graph.indptr, graph.indices, graph.weight, graph.release)


def parts(matrix: Csr, nodes: Tensor, at_most: int) -> Iterator[Part]:
    """The entries of rows `nodes` (ascending), at most so many at a time; rows without entries may be in no part."""
    low, high = int(nodes[0]), int(nodes[-1]) + 1
    consecutive = high - low == len(nodes)

    def read(array: Tensor, at: Tensor) -> Tensor:
        return take(array, at, matrix.release, _TOUCH)

    starts = matrix.indptr[low:high].clone() if consecutive else read(matrix.indptr, nodes)
    counts = (matrix.indptr[low + 1 : high + 1] if consecutive else read(matrix.indptr, nodes + 1)) - starts
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])  # of each row, counted within the piece
    for begin in range(0, int(ends[-1]), at_most):
        end = min(begin + at_most, int(ends[-1]))
        first = int(torch.searchsorted(ends, begin, right=True)) - 1
        last = int(torch.searchsorted(ends, end))
        pointer = ends[first : last + 1].clamp(begin, end) - begin
        if consecutive:
            where = slice(int(starts[0]) + begin, int(starts[0]) + end)
            columns, values = matrix.columns[where], None if matrix.values is None else matrix.values[where]
        else:
            at = (starts[first:last] - ends[first:last])[row_of_entry(pointer)] + torch.arange(begin, end)
            columns, values = read(matrix.columns, at), None if matrix.values is None else read(matrix.values, at)
        yield Part(first, last, pointer, columns, values)
        matrix.release()


def _add_product(sums: Tensor, part: Part, columns: Tensor, values: Tensor, rows: Tensor) -> None:
    """sums[part] += CSR(part) @ rows."""
    shape = (part.last - part.first, len(rows))
    matrix = csr(part.pointer, columns, values.to(rows.dtype), shape).to(rows.device)
    sums[part.first : part.last].addmm_(matrix, rows)
