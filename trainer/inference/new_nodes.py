"""Embeddings of nodes that came after training: what the trainer's export would give on the graph with them in it.

H(k+1) = σ(Â H(k) W(k) + b(k)) for the new nodes and, before, for all that they depend on, with Â of the whole extended
graph (trainer.inference.extended). The dense half and the order of products are those of trainer.export.layerwise, the
sums those of trainer.export.sums; no earlier embedding is reused, since new edges change those of known neighbours too.

Memory: about 64 MB, 40 bytes an edge that is read, and the hidden rows of the neighbours, at most MOST_VALUES.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.export.layerwise import Layers, layers_of
from trainer.export.scratch import Table
from trainer.export.sums import ENTRY_BYTES, Source, aggregate, sparse_times
from trainer.files.mapped import take
from trainer.inference.extended import Neighbourhood, neighbourhood, new_edges
from trainer.inference.features import Preparation, features_of
from trainer.nn.encoder import Encoder
from trainer.nn.sparse import rows_of

MOST_NODES = 100_000
MOST_VALUES = 250_000_000  # numbers in the hidden rows of one layer: a gigabyte
_BUFFER = 64 << 20
_FEW = 4


def embed_new_nodes(
    encoder: Encoder, graph: Graph, preparation: Preparation, m: int, arrays: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """Vectors of m new nodes, [m, dim].

    Args:
        graph: what the encoder was trained on, as `trainer.data.datasets.load` gives it. Never written to.
        arrays: features [m, F] (or indptr, indices, values, widths), edge_node, edge_other, edge_weight,
            edge_direction [E], replaces [m]; what they mean: `new_edges`, `features_of`. Edges, `replaces` and `widths`
            may be left out.

    Raises:
        InvalidInput: naming the array and the first wrong position; too much to read; a vector that is not finite.
    """
    if not 1 <= m <= MOST_NODES:
        raise InvalidInput(f"{m} new nodes; send 1 to {MOST_NODES:,} at a time.")
    if encoder.diffused is not None:
        raise InvalidInput(
            "this encoder sees the whole graph through personalised PageRank (encoder.diffusion), so a new node "
            "changes every embedding. Train again with the new nodes in the graph."
        )
    if encoder.spec.powers:
        raise InvalidInput(
            "this encoder exports a sum of powers (encoder.powers), which is made for a whole graph at once. Train "
            "again with the new nodes in the graph."
        )
    x = preparation.apply(features_of(arrays, m, preparation.width))
    node = _integers(arrays, "edge_node", 0)
    edges = new_edges(
        graph, m, node, _integers(arrays, "edge_other", 0),
        np.asarray(arrays.get("edge_weight", np.ones(len(node))), np.float32),
        _integers(arrays, "edge_direction", len(node)), _integers(arrays, "replaces", m, -1),
    )  # fmt: skip
    with torch.no_grad():
        layers = layers_of(encoder, graph)
        if layers.hops:
            vectors = _embed(layers, graph, neighbourhood(graph, edges, layers.hops), x, edges.place)
        else:
            vectors = _dense(x).float().numpy()
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        raise InvalidInput(
            f"the embedding of new node {int(finite.argmin())} is not finite. Features as large as these were not in "
            "the graph: check their unit."
        )
    return vectors


def _integers(arrays: Mapping[str, NDArray[Any]], name: str, length: int, value: int = 0) -> NDArray[np.int64]:
    array = np.asarray(arrays.get(name, np.full(length, value)))
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidInput(f"{name} is {array.dtype} of shape {array.shape}; give a list of whole numbers.")
    return array.astype(np.int64)


def _embed(
    layers: Layers, graph: Graph, around: Neighbourhood, x: Tensor, place: NDArray[np.int64]
) -> NDArray[np.float32]:
    like = layers.like
    scale = around.degree.to(like.dtype).rsqrt_()
    source: Source | _Inputs = _Inputs(graph, around.places, x, place, layers)
    for layer, nodes in enumerate(around.levels[1:]):
        width = layers.width_written(layer)
        if len(nodes) * width > MOST_VALUES:
            raise InvalidInput(
                f"the embeddings depend on {len(nodes):,} neighbours with {width} values each, more than is kept. Send "
                "fewer nodes at a time, or leave out edges to nodes with very many neighbours."
            )
        written = like.new_empty(len(nodes), width)
        at_most = max(1, _BUFFER // (ENTRY_BYTES + source.row_bytes))
        step = max(1, _BUFFER // layers.row_bytes(layer, source.width))
        for first in range(0, len(nodes), step):
            piece = nodes[first : first + step]
            sums = aggregate(around.graph, scale, source, piece, at_most)  # type: ignore[arg-type]
            short = max(0, _FEW - len(piece))  # a product with very few rows rounds otherwise than the export's
            rows = layers.after_sum(layer, torch.cat([sums, sums[:1].expand(short, -1)]) if short else sums)
            written[first : first + step] = rows[: len(piece)]
        source = Source(Table(written, lambda: None), nodes, like, _BUFFER)
    order = np.searchsorted(np.sort(place), place)  # of the request
    return written.float().numpy()[order]


class _Inputs:
    """What the first layer sums, by local node: features, or their product with W(0). A `Source` without a table."""

    def __init__(self, graph: Graph, places: NDArray[np.int64], x: Tensor, place: NDArray[np.int64], layers: Layers):
        self.graph, self.like = graph, layers.like
        self.weight = layers.weights[0] if layers.transforms_first[0] else None
        self.width = graph.num_features if self.weight is None else self.weight.shape[1]
        dense = graph.num_features if graph.x.layout != torch.sparse_csr else 0
        self.row_bytes = (dense + self.width) * 2 * self.like.element_size()
        self.places = torch.from_numpy(places)
        self.new = torch.full((len(places),), -1)  # which new node it is
        self.new[torch.from_numpy(np.searchsorted(places, place))] = torch.arange(len(place))
        rows = _dense(x) if self.weight is None else x.to(self.like.dtype) @ self.weight
        self.rows = rows.to(self.like)

    def take(self, nodes: Tensor) -> Tensor:
        """Rows of these ascending local nodes.  [n] -> [n, width]."""
        new = self.new[nodes]
        known = new < 0
        out = self.like.new_empty(len(nodes), self.width)
        out[~known] = self.rows[new[~known]]
        if bool(known.any()):
            out[known] = self._stored(self.places[nodes[known]])
        return out

    def gather(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that contain those of all `nodes`, and for each node which row it is."""
        unique, which = torch.unique(nodes, return_inverse=True)
        return self.take(unique), which

    def _stored(self, nodes: Tensor) -> Tensor:
        graph = self.graph
        if graph.x.layout == torch.sparse_csr:
            if self.weight is None:  # an encoder without layers
                return rows_of(graph.x, nodes).to_dense().to(self.like)
            return sparse_times(graph, self.weight, nodes, _BUFFER // ENTRY_BYTES)
        rows = take(graph.x, nodes, graph.release, _BUFFER).to(self.like)
        return rows if self.weight is None else rows @ self.weight


def _dense(x: Tensor) -> Tensor:
    return x.to_dense() if x.layout == torch.sparse_csr else x
