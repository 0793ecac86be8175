"""Neighbour-sampled batches: a pair for each, over the seeds only. Memory: the activations of one batch.

Nothing of the graph is copied: a batch reads the rows and edges it sampled, also from memory-mapped arrays, and the
epoch's augmentations are decided edge by edge (trainer.nn.views). The only vectors over all nodes are the two views'
degrees.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.data.seeds import generator
from trainer.distributed.team import Team
from trainer.encoding.batch_view import batch_view, degree_scale
from trainer.encoding.pair import Encoding, Pair
from trainer.files.mapped import take
from trainer.nn.adaptive_drop import drop_rates
from trainer.nn.encoder import Encoder, Features
from trainer.nn.sparse import SparseOperator, rows_of
from trainer.nn.views import Augmentation, Rates, View, draw_augmentations, draw_columns
from trainer.sampling.batches import Batches, SampledBatch

_TOUCH = 64 << 20  # bytes of a mapped feature table that may be resident while a batch's rows are gathered


class EpochViews:
    """The two augmentations of an epoch with their degrees: what turns any batch into two views.

    redraw_columns: each batch masks other feature columns. Steps on batches want that variety; where all batches make
    up one step they must agree. Edges are dropped once an epoch, since degrees cost a pass over all of them.
    """

    def __init__(
        self, spec: TrainSpec, graph: Graph, epoch: int, device: torch.device, dtype: torch.dtype,
        *, redraw_columns: bool, rates: Rates,
    ):  # fmt: skip
        self.spec, self.graph, self.epoch, self.device, self.dtype = spec, graph, epoch, device, dtype
        self._redraws, self._rates = redraw_columns, rates
        self._densifies = graph.num_features <= spec.encoder.hidden  # narrow rows cost less dense than they save sparse
        both = draw_augmentations(spec.augment, graph.num_features, seed=spec.run.seed, epoch=epoch, rates=rates)
        self._views: list[tuple[Augmentation, Tensor]] = [
            (augmentation, degree_scale(graph, augmentation, dtype)) for augmentation in both
        ]

    def of(self, batch: SampledBatch) -> tuple[View, View]:
        columns = [augmentation.columns for augmentation, _ in self._views]
        if self._redraws:
            columns = draw_columns(
                self.spec.augment, self.graph.num_features, seed=self.spec.run.seed, epoch=self.epoch,
                step=batch.number, rates=self._rates,
            )  # fmt: skip
        first, second = (
            batch_view(batch, self.graph, augmentation.with_columns(seen), scale, self.device)
            for (augmentation, scale), seen in zip(self._views, columns, strict=True)
        )
        return first, second

    def features(self, batch: SampledBatch) -> Features:
        """Rows of x for the batch's nodes, in the training precision."""
        x = self.graph.x
        if x.layout != torch.sparse_csr:
            return self._dense_rows(batch.n_id).to(self.device, self.dtype)
        rows = rows_of(x, batch.n_id)
        if self._densifies:
            return rows.to_dense().to(self.device, self.dtype)
        return SparseOperator(rows.to(self.device, self.dtype))

    def _dense_rows(self, nodes: Tensor) -> Tensor:
        x = self.graph.x
        if not self.graph.is_mapped:
            return x[nodes]
        ascending, order = nodes.sort()
        rows = x.new_empty(len(nodes), x.shape[1])
        rows[order] = take(x, ascending, self.graph.release, _TOUCH)
        return rows


class SampledGraph(Encoding):
    """A pair per batch of seeds. In a team, each worker encodes its share of every batch."""

    def __init__(
        self, spec: TrainSpec, graph: Graph, encoder: Encoder, batches: Batches, team: Team, device: torch.device,
        dtype: torch.dtype,
    ):  # fmt: skip
        self.spec, self.graph, self.encoder, self.batches, self.team = spec, graph, encoder, batches, team
        self.device, self.dtype = device, dtype
        self.steps, self.rates = len(batches), drop_rates(spec.augment, graph)

    def pairs(self, epoch: int, start: int = 0) -> Iterator[Pair]:
        views = EpochViews(self.spec, self.graph, epoch, self.device, self.dtype, redraw_columns=True, rates=self.rates)
        part = (self.team.rank, self.team.size)
        for batch in self.batches.epoch(epoch, start=start, part=part):
            noise = generator(self.spec.run.seed, "noise", epoch, batch.number, self.team.rank, device=self.device)
            yield SampledPair(self.encoder, views, batch, noise)
            self.graph.release()


class SampledPair(Pair):
    """Both views of one batch."""

    def __init__(self, encoder: Encoder, views: EpochViews, batch: SampledBatch, noise: torch.Generator):
        self._encoder = encoder
        self._x = views.features(batch)
        self.views = views.of(batch)
        self.nodes, self.noise = batch.seeds, noise

    def encode(self, encoder: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        first, second = ((encoder or self._encoder)(self._x, view, self.noise) for view in self.views)
        return first, second
