"""The view of a sampled batch: Â between its hops, normalised on the degrees of the whole graph.

Layer k needs only what later layers use: its rows are the nodes within L - k hops of the seeds, its columns those
within one hop more, so no work is done on outer hops twice (PyG's `trim_to_layer`). Where a node sampled s of its d
in-edges, their values are multiplied by d / s: its sum over neighbours is then right on average, and exact if s = d.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.data.features import csr
from trainer.data.graph import Graph
from trainer.nn.sparse import SparseOperator, pointer, row_of_entry
from trainer.nn.views import Augmentation, View
from trainer.sampling.batches import SampledBatch

_EDGES_AT_ONCE = 1 << 18  # hashed together when degrees are counted: temporaries of a few MB


def degree_scale(graph: Graph, augmentation: Augmentation, dtype: torch.dtype) -> Tensor:
    """D^{-1/2} of a view over all of its edges and self loops.  [N]; one pass over the edges, by slices."""
    scale = torch.empty(graph.num_nodes, dtype=dtype)
    start = 0
    while start < graph.num_nodes:
        reach = int(graph.indptr[start]) + _EDGES_AT_ONCE
        stop = max(start + 1, int(torch.searchsorted(graph.indptr, reach, right=True)) - 1)
        indptr = graph.indptr[start : stop + 1]
        edges = slice(int(indptr[0]), int(indptr[-1]))
        target = row_of_entry(indptr)
        edge = torch.arange(edges.start, edges.stop)
        kept = augmentation.keeps(edge, graph.indices[edges], target + start, graph.num_nodes).to(dtype)
        if graph.weight is not None:
            kept *= graph.weight[edges]
        scale[start:stop] = torch.ones(stop - start, dtype=dtype).index_add_(0, target, kept).rsqrt_()
        start = stop
        graph.release()
    return scale


def batch_view(
    batch: SampledBatch, graph: Graph, augmentation: Augmentation, scale: Tensor, device: torch.device
) -> View:
    """The batch under an augmentation.  scale: `degree_scale` of the graph under the same one."""
    n_id = batch.n_id
    kept = augmentation.keeps(batch.e_id, n_id[batch.source], n_id[batch.target], graph.num_nodes)
    source, target, edge = batch.source[kept], batch.target[kept], batch.e_id[kept]
    node_scale = scale[n_id]
    value = node_scale[source] * node_scale[target]
    if graph.weight is not None:
        value *= graph.weight[edge].to(scale.dtype)
    reached = sum(batch.nodes_per_hop[:-1])  # nodes whose in-edges were sampled
    expanded = n_id[:reached]
    degree = graph.indptr[expanded + 1] - graph.indptr[expanded]
    taken = torch.bincount(batch.target, minlength=reached)
    if not torch.equal(degree, taken):
        value *= (degree / taken.clamp_min(1)).to(scale.dtype)[target]

    adjacencies = []
    hops = len(batch.edges_per_hop)
    for layer in range(hops):
        rows, columns = sum(batch.nodes_per_hop[: hops - layer]), sum(batch.nodes_per_hop[: hops - layer + 1])
        used = int(kept[: sum(batch.edges_per_hop[: hops - layer])].sum())
        matrix = _with_loops(source[:used], target[:used], value[:used], node_scale[:rows].square(), columns)
        adjacencies.append(SparseOperator(matrix.to(device)))
    return View(tuple(adjacencies), augmentation.columns.to(device))


def _with_loops(source: Tensor, target: Tensor, value: Tensor, loop: Tensor, columns: int) -> Tensor:
    """CSR of edges sorted by target, each row led by its self loop.  loop: [rows], its value."""
    rows = len(loop)
    indptr = pointer(target, rows)
    row = torch.arange(rows)
    edge_at = torch.arange(len(target)) + target + 1  # every row up to its own has put in one loop
    loop_at = indptr[:-1] + row
    indices = source.new_empty(len(target) + rows)
    values = value.new_empty(len(indices))
    indices[edge_at], indices[loop_at] = source, row
    values[edge_at], values[loop_at] = value, loop
    return csr(indptr + torch.arange(rows + 1), indices, values, (rows, columns))
