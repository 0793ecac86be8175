"""Augmented views: dropped edges and masked feature columns (methods 1.3), as decisions rather than copies.

Whether a view keeps an edge is a hash of the view's key and the edge (trainer.data.seeds), so the whole graph, a
sampled batch and another worker all see the same view, and no mask over all edges is ever stored. A view normalises on
its own degrees, over all of its kept edges, outside the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.data.features import csr
from trainer.data.graph import Graph
from trainer.data.seeds import BITS, generator, hashed, key
from trainer.nn.adaptive_drop import DropRates
from trainer.nn.sparse import Operator, SparseOperator, pointer, row_of_entry, transpose_order
from trainer.spec.encoder import AugmentSpec

Rates = tuple[DropRates, DropRates] | None


@dataclass(frozen=True)
class Augmentation:
    """What one view drops.

    edge_key, edge_drop: an edge is dropped if its hash falls below the share, a number or one for each target [N];
    columns: [F], true where a feature column is seen; undirected: both directions of an edge share one hash.
    """

    edge_key: int
    edge_drop: float | Tensor
    columns: Tensor
    undirected: bool = False

    def with_columns(self, columns: Tensor) -> Augmentation:
        """The same edges, other feature columns."""
        return replace(self, columns=columns)

    def keeps(self, edge: Tensor, source: Tensor, target: Tensor, num_nodes: int) -> Tensor:
        """Whether these edges are in the view.  edge: [e] positions in graph.indices; their ends -> [e] bool."""
        if self.undirected:
            edge = torch.minimum(source, target) * num_nodes + torch.maximum(source, target)
        if isinstance(self.edge_drop, Tensor):
            return hashed(self.edge_key, edge) >= (self.edge_drop.to(target.device)[target] * 2**BITS).round_().long()
        return hashed(self.edge_key, edge) >= round(self.edge_drop * 2**BITS)


def draw_augmentations(
    spec: AugmentSpec, num_features: int, *, seed: int, epoch: int, rates: Rates = None
) -> tuple[Augmentation, Augmentation]:
    """The two augmentations of an epoch.  rates: of `augment.adaptive`."""
    columns = draw_columns(spec, num_features, seed=seed, epoch=epoch, rates=rates)
    edge_drop = spec.edge_drop if rates is None else [rate.edge for rate in rates]
    first, second = (
        Augmentation(key(seed, "edges", epoch, which), edge_drop[which], columns[which], spec.undirected)
        for which in range(2)
    )
    return first, second


def draw_columns(
    spec: AugmentSpec, num_features: int, *, seed: int, epoch: int, step: int = 0, rates: Rates = None
) -> list[Tensor]:
    """The feature columns that each of the two views sees.  Two of [F] bool."""
    draws = generator(seed, "columns", epoch, step)
    shares = spec.feature_mask if rates is None else [rate.column for rate in rates]
    return [torch.rand(num_features, generator=draws) >= share for share in shares]


@dataclass(frozen=True)
class View:
    """One look at a graph or a batch of it: Â for each layer and the feature columns seen (None: all).

    adjacencies: first layer first; a single one serves all layers. Layer k's maps the rows of layer k - 1 to its own.
    """

    adjacencies: tuple[Operator, ...]
    columns: Tensor | None = None

    def adjacency(self, layer: int) -> Operator:
        return self.adjacencies[min(layer, len(self.adjacencies) - 1)]


class Propagation:
    """Builds Â = D^{-1/2} (A + I) D^{-1/2} of a graph in memory for any subset of edges; D holds in-degrees, as in PyG.

    Args:
        indptr, indices: CSR over targets; row i lists the sources of edges into i. No self loops.
        weight: [E] or None for ones.
    """

    def __init__(self, indptr: Tensor, indices: Tensor, weight: Tensor | None = None, dtype: torch.dtype | None = None):
        self.num_nodes, self.num_edges = len(indptr) - 1, len(indices)
        dtype = dtype or torch.float32
        nodes = torch.arange(self.num_nodes, device=indices.device)
        target = torch.cat([row_of_entry(indptr), nodes])
        source = torch.cat([indices, nodes])
        value = torch.ones(self.num_edges, dtype=dtype, device=indices.device) if weight is None else weight.to(dtype)
        value = torch.cat([value, value.new_ones(self.num_nodes)])
        # Entries in CSR order; `slot` remembers which edge an entry is (loops come after all edges).
        slot = torch.argsort(target * self.num_nodes + source)
        self._slot, self._target, self._source, self._value = slot, target[slot], source[slot], value[slot]
        self._order = transpose_order(self._source)

    @classmethod
    def of(cls, graph: Graph, device: torch.device, dtype: torch.dtype) -> Propagation:
        """Of a graph, in some precision and place."""
        weight = None if graph.weight is None else graph.weight.to(device)
        return cls(graph.indptr.to(device), graph.indices.to(device), weight, dtype)

    def whole(self) -> View:
        """All edges and all columns, for embedding."""
        return View((self.over(None),))

    def view(self, augmentation: Augmentation) -> View:
        """The graph under an augmentation."""
        loops = self._slot >= self.num_edges  # they hash like any edge, but always stay
        kept = augmentation.keeps(self._slot, self._source, self._target, self.num_nodes).logical_or_(loops)
        return View((self.over(kept),), augmentation.columns.to(self._slot.device))

    def over(self, stays: Tensor | None) -> SparseOperator:
        """Â over the entries where `stays` ([E + N], bool, in CSR order with self loops) is true."""
        target, source, value, order = self._target, self._source, self._value, self._order
        if stays is not None:
            renumbered = stays.cumsum(0) - 1
            order = renumbered[order[stays[order]]]
            target, source, value = target[stays], source[stays], value[stays]
        degree = torch.zeros(self.num_nodes, dtype=value.dtype, device=value.device).index_add_(0, target, value)
        scale = degree.rsqrt()
        value = scale[target] * value * scale[source]
        n = self.num_nodes
        return SparseOperator(
            csr(pointer(target, n), source, value, (n, n)),
            lambda: csr(pointer(source[order], n), target[order], value[order], (n, n)),
        )


def kept_edges(view: View) -> Tensor:
    """The edges of a whole graph's view as a CSR of ones, without self loops.  -> [N, N]"""
    operator = view.adjacency(0)
    assert isinstance(operator, SparseOperator)
    target, source = row_of_entry(operator.matrix.crow_indices()), operator.matrix.col_indices()
    kept = target != source
    n = len(operator.matrix)
    values = operator.matrix.values().new_ones(int(kept.sum()))
    return csr(pointer(target[kept], n), source[kept], values, (n, n))
