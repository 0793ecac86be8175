"""Augmented views: dropped edges and masked feature columns, drawn from an explicit generator (methods 1.3).

The graph is never copied. A view is a propagation matrix over the kept edges, normalised on that view's own degrees
outside the layer, and a 0/1 vector over feature columns that the encoder applies to its first weight matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.data.features import csr
from trainer.nn.sparse import SparseOperator, pointer, row_of_entry, transpose_order


@dataclass(frozen=True)
class View:
    """One look at the graph: Â over its kept edges and the feature columns it sees (None: all)."""

    adjacency: SparseOperator
    columns: Tensor | None = None


class Propagation:
    """Builds Â = D^{-1/2} (A + I) D^{-1/2} for any subset of edges; D holds in-degrees, as in PyG's GCNConv.

    Args:
        indptr, indices: CSR over targets; row i lists the sources of edges into i. No self loops.
        weight: [E] or None for ones.
    """

    def __init__(self, indptr: Tensor, indices: Tensor, weight: Tensor | None = None, dtype: torch.dtype | None = None):
        self.num_nodes, self.num_edges = len(indptr) - 1, len(indices)
        self.device = indices.device
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
        self._pair: Tensor | None = None

    def whole(self) -> SparseOperator:
        """Â over all edges, for embedding."""
        return self.over(None)

    def over(self, kept: Tensor | None) -> SparseOperator:
        """Â over the edges where `kept` ([E], bool) is true; self loops are always there."""
        target, source, value, order = self._target, self._source, self._value, self._order
        if kept is not None:
            stays = torch.cat([kept, kept.new_ones(self.num_nodes)])[self._slot]
            renumbered = stays.cumsum(0) - 1
            order = renumbered[order[stays[order]]]
            target, source, value = target[stays], source[stays], value[stays]
        degree = torch.zeros(self.num_nodes, dtype=value.dtype, device=value.device).index_add_(0, target, value)
        scale = degree.rsqrt()
        value = scale[target] * value * scale[source]
        n = self.num_nodes
        matrix = csr(pointer(target, n), source, value, (n, n))
        return SparseOperator(matrix, csr(pointer(source[order], n), target[order], value[order], (n, n)))

    def undirected_pairs(self) -> Tensor:
        """[E]: a number per edge that both of its directions share."""
        if self._pair is None:
            ends = self._slot < self.num_edges
            target, source = self._target[ends], self._source[ends]
            low, high = torch.minimum(target, source), torch.maximum(target, source)
            pair = torch.unique(low * self.num_nodes + high, return_inverse=True)[1]
            self._pair = torch.empty_like(pair)
            self._pair[self._slot[ends]] = pair
        return self._pair


def draw_view(
    propagation: Propagation,
    num_features: int,
    *,
    edge_drop: float,
    feature_mask: float,
    generator: torch.Generator,
    undirected: bool = False,
) -> View:
    """Drop each stored edge (or each undirected pair) and mask each feature column independently."""
    device = propagation.device
    if undirected:
        pair = propagation.undirected_pairs()
        pairs = int(pair.max()) + 1 if len(pair) else 0
        kept = (torch.rand(pairs, generator=generator) >= edge_drop).to(device)[pair]
    else:
        kept = (torch.rand(propagation.num_edges, generator=generator) >= edge_drop).to(device)
    columns = (torch.rand(num_features, generator=generator) >= feature_mask).to(device)
    return View(propagation.over(kept), columns)
