"""The whole graph at once: one pair an epoch. Memory: about 8 N × hidden floats of activations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor, nn

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.data.seeds import generator
from trainer.encoding.pair import Encoding, Pair
from trainer.nn.encoder import Encoder, Features
from trainer.nn.sparse import SparseOperator
from trainer.nn.views import Propagation, View, draw_augmentations, kept_edges


class WholeGraph(Encoding):
    """Features and edges on the training device; sparse features stay sparse."""

    steps = 1

    def __init__(self, spec: TrainSpec, graph: Graph, encoder: Encoder, device: torch.device, dtype: torch.dtype):
        self.spec, self.encoder, self.device = spec, encoder, device
        x = graph.x.to(device=device, dtype=dtype)
        self.x: Features = SparseOperator(x) if x.layout == torch.sparse_csr else x
        weight = None if graph.weight is None else graph.weight.to(device)
        self.propagation = Propagation(graph.indptr.to(device), graph.indices.to(device), weight, dtype)
        self.nodes = torch.arange(graph.num_nodes)
        self._num_features = graph.num_features

    def pairs(self, epoch: int, start: int = 0) -> Iterator[Pair]:
        if start == 0:
            seed = self.spec.run.seed
            both = draw_augmentations(self.spec.augment, self._num_features, seed=seed, epoch=epoch)
            views = tuple(self.propagation.view(augmentation) for augmentation in both)
            yield WholePair(self, views, generator(seed, "noise", epoch, device=self.device))

    @cached_property
    def clean(self) -> View:
        """All edges, all feature columns."""
        return self.propagation.whole()

    @torch.no_grad()
    def embed(self) -> Tensor:
        """Embeddings of the clean graph in eval mode, [N, dim]: what the layer-wise export must equal."""
        was_training = self.encoder.training
        self.encoder.eval()
        embeddings = self.encoder.readout(self.x, self.clean)
        self.encoder.train(was_training)
        return embeddings


class WholePair(Pair):
    """Both views of all nodes."""

    def __init__(self, whole: WholeGraph, views: tuple[View, ...], noise: torch.Generator):
        self._whole, self.views = whole, views
        self.nodes, self.noise = whole.nodes, noise

    def encode(self, encoder: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        first, second = ((encoder or self._whole.encoder)(self._whole.x, view, self.noise) for view in self.views)
        return first, second

    def clean(self, encoder: nn.Module | None = None) -> Tensor:
        embeddings: Tensor = (encoder or self._whole.encoder)(self._whole.x, self._whole.clean, self.noise)
        return embeddings

    def neighbours(self) -> tuple[Tensor, Tensor]:
        first, second = (kept_edges(view) for view in self.views)
        return first, second
