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
from trainer.nn.adaptive_drop import drop_rates
from trainer.nn.encoder import Encoder, features_of
from trainer.nn.views import Propagation, View, draw_augmentations, kept_edges


class WholeGraph(Encoding):
    """Features and edges on the training device; sparse features stay sparse."""

    steps = 1

    def __init__(self, spec: TrainSpec, graph: Graph, encoder: Encoder, device: torch.device, dtype: torch.dtype):
        self.spec, self.encoder, self.device = spec, encoder, device
        self.x = features_of(graph, device, dtype)
        self.propagation = Propagation.of(graph, device, dtype)
        self.nodes = torch.arange(graph.num_nodes)
        self._num_features, self._rates = graph.num_features, drop_rates(spec.augment, graph)

    def pairs(self, epoch: int, start: int = 0) -> Iterator[Pair]:
        if start == 0:
            yield WholePair(self, epoch)

    def views(self, epoch: int) -> tuple[View, View]:
        """The two augmented views of an epoch."""
        both = draw_augmentations(
            self.spec.augment, self._num_features, seed=self.spec.run.seed, epoch=epoch, rates=self._rates
        )
        first, second = (self.propagation.view(augmentation) for augmentation in both)
        return first, second

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
    """Both views of all nodes, drawn when first asked for: some methods look at the clean graph only."""

    def __init__(self, whole: WholeGraph, epoch: int):
        self._whole, self._epoch = whole, epoch
        self.nodes = whole.nodes
        self.noise = generator(whole.spec.run.seed, "noise", epoch, device=whole.device)

    @cached_property
    def views(self) -> tuple[View, View]:
        return self._whole.views(self._epoch)

    def encode(self, encoder: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        first, second = ((encoder or self._whole.encoder)(self._whole.x, view, self.noise) for view in self.views)
        return first, second

    def clean(self, encoder: nn.Module | None = None) -> Tensor:
        embeddings: Tensor = (encoder or self._whole.encoder)(self._whole.x, self._whole.clean, self.noise)
        return embeddings

    def neighbours(self) -> tuple[Tensor, Tensor]:
        first, second = (kept_edges(view) for view in self.views)
        return first, second
