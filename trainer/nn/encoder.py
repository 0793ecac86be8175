"""The graph encoder E: H⁽ᵏ⁺¹⁾ = σ(norm(Â H⁽ᵏ⁾ W⁽ᵏ⁾ + b⁽ᵏ⁾)); norm and σ follow the last layer only if the spec says so.

Â comes normalised from outside (trainer.nn.views, trainer.encoding.batch_view), so the same layer serves views, the
clean graph and sampled batches with whole-graph degrees. The embedding that is exported is `readout`: Âᵏ of the output
where `encoder.smoothing` is k, a sum of such powers where `encoder.powers` has their weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from trainer.data.graph import Graph
from trainer.nn.activation import Activation
from trainer.nn.products import matmul
from trainer.nn.sparse import Operator, PersonalisedPageRank, SparseOperator
from trainer.nn.views import View
from trainer.spec.encoder import EncoderSpec

Features = Tensor | SparseOperator  # [N, F], dense or sparse
_SPARSE_COST = 16  # a multiplication of a sparse product costs about this many of a dense one: it waits for memory


def features_of(graph: Graph, device: torch.device, dtype: torch.dtype) -> Features:
    """A whole graph's features as encoders take them."""
    x = graph.x.to(device=device, dtype=dtype)
    return SparseOperator(x) if x.layout == torch.sparse_csr else x


class Encoder(nn.Module):
    """GCN with glorot weights and zero biases, as PyG's GCNConv starts."""

    def __init__(self, num_features: int, spec: EncoderSpec, *, generator: torch.Generator):
        super().__init__()
        self.num_features, self.spec = num_features, spec
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.finishes = nn.ModuleList()
        widths = spec.widths(num_features)
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(widths), 1):
            bound = (6 / (fan_in + fan_out)) ** 0.5
            self.weights.append(torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=generator))
            self.biases.append(torch.zeros(fan_out))
            self.finishes.append(Finish(spec, fan_out, is_last=layer == spec.layers))
        self.dim = widths[-1]
        self.diffused: Encoder | None = None
        if spec.diffusion == "ppr":
            self.diffused = Encoder(num_features, spec.model_copy(update={"diffusion": "none"}), generator=generator)

    @property
    def is_random(self) -> bool:
        """Whether two passes over the same view differ while training."""
        return any(finish.is_random for finish in self.finishes)

    def forward(self, x: Features, view: View, generator: torch.Generator | None = None) -> Tensor:
        """Embeddings of the nodes that the view's last adjacency has rows for.  x: [n, F] -> [rows, dim]."""
        over_edges = self.over_edges(x, view, generator)
        return over_edges if self.diffused is None else over_edges + self.over_diffusion(x, view, generator)

    def over_diffusion(self, x: Features, view: View, generator: torch.Generator | None = None) -> Tensor:
        """The output of the second encoder alone, over personalised PageRank of a whole graph."""
        assert self.diffused is not None
        return self.diffused.over_edges(x, diffused(view), generator)

    def over_edges(self, x: Features, view: View, generator: torch.Generator | None = None) -> Tensor:
        """The output of the first encoder alone."""
        hidden: Tensor | SparseOperator = x
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer == 0 and view.columns is not None:
                weight = weight * view.columns.unsqueeze(1)  # masking W's rows masks X's columns, without a copy of X
            adjacency = view.adjacency(layer)
            if isinstance(hidden, Tensor) and _aggregates_first(adjacency, weight):
                hidden = matmul(adjacency @ hidden, weight) + bias
            else:
                hidden = adjacency @ (matmul(hidden, weight) if isinstance(hidden, Tensor) else hidden @ weight) + bias
            hidden = self.finishes[layer](hidden, generator)
        return hidden if isinstance(hidden, Tensor) else hidden.matrix.to_dense()

    def readout(self, x: Features, view: View) -> Tensor:
        """What is exported, for a whole graph.  x: [N, F] -> [N, dim]."""
        hidden = self(x, view)
        if self.spec.powers:
            return _sum_of_powers(hidden, view.adjacency(0), self.spec.powers)
        for _ in range(self.spec.smoothing):
            hidden = view.adjacency(0) @ hidden
        return hidden


def _sum_of_powers(rows: Tensor, adjacency: Operator, weights: Sequence[float]) -> Tensor:
    """Σ_k w_k unit(Âᵏ rows), k from 0.  [N, d] -> [N, d]."""
    total = weights[0] * normalize(rows)
    for weight in weights[1:]:
        rows = adjacency @ rows
        total += weight * normalize(rows)
    return total


def diffused(view: View) -> View:
    """The same nodes and features, joined by personalised PageRank instead of by edges; for a view of a whole graph."""
    adjacency = view.adjacency(0)
    assert isinstance(adjacency, SparseOperator)
    return View((PersonalisedPageRank(adjacency),), view.columns)


class Finish(nn.Module):
    """What follows a layer's sums, row by row (in eval mode): normalisation and activation, or nothing."""

    def __init__(self, spec: EncoderSpec, width: int, *, is_last: bool):
        super().__init__()
        name = spec.last_activation if is_last else spec.activation
        self.activation = None if name is None else Activation(name)
        self.norm: nn.Module | None = None
        if name is not None and spec.norm == "batch":
            self.norm = nn.BatchNorm1d(width, momentum=spec.batch_momentum)
        elif name is not None and spec.norm == "layer":
            self.norm = nn.LayerNorm(width)

    @property
    def is_random(self) -> bool:
        return self.activation is not None and self.activation.is_random

    def forward(self, rows: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.norm is not None:
            rows = self.norm(rows)
        return rows if self.activation is None else self.activation(rows, generator)


def _aggregates_first(adjacency: Operator, weight: Tensor) -> bool:
    """Whether (Â H) W costs less than Â (H W): so it is where W widens, or where Â has far fewer rows than columns."""
    rows, columns = adjacency.shape
    narrow, wide = weight.shape
    saved = (columns - rows) * narrow * wide
    return saved + _SPARSE_COST * adjacency.nnz * (wide - narrow) > 0
