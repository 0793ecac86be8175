"""The graph encoder E: H⁽ᵏ⁺¹⁾ = σ(Â H⁽ᵏ⁾ W⁽ᵏ⁾ + b⁽ᵏ⁾), no activation after the last layer.

Â comes normalised from outside (trainer.nn.views, trainer.encoding.batch_view), so the same layer serves views, the
clean graph and sampled batches with whole-graph degrees.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from trainer.nn.activation import Activation
from trainer.nn.products import matmul
from trainer.nn.sparse import SparseOperator
from trainer.nn.views import View
from trainer.spec.encoder import EncoderSpec

Features = Tensor | SparseOperator  # [N, F], dense or sparse
_SPARSE_COST = 16  # a multiplication of a sparse product costs about this many of a dense one: it waits for memory


class Encoder(nn.Module):
    """GCN with glorot weights and zero biases, as PyG's GCNConv starts."""

    def __init__(self, num_features: int, spec: EncoderSpec, *, generator: torch.Generator):
        super().__init__()
        widths = [num_features, *[spec.hidden] * (spec.layers - 1), spec.dim]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(widths):
            bound = (6 / (fan_in + fan_out)) ** 0.5
            self.weights.append(torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=generator))
            self.biases.append(torch.zeros(fan_out))
        self.activation = Activation(spec.activation)

    @property
    def is_random(self) -> bool:
        """Whether two passes over the same view differ while training."""
        return self.activation.is_random and len(self.weights) > 1

    def forward(self, x: Features, view: View, generator: torch.Generator | None = None) -> Tensor:
        """Embeddings of the nodes that the view's last adjacency has rows for.  x: [n, F] -> [rows, dim]."""
        hidden: Tensor | SparseOperator = x
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer == 0 and view.columns is not None:
                weight = weight * view.columns.unsqueeze(1)  # masking W's rows masks X's columns, without a copy of X
            adjacency = view.adjacency(layer)
            if isinstance(hidden, Tensor) and _aggregates_first(adjacency, weight):
                hidden = matmul(adjacency @ hidden, weight) + bias
            else:
                hidden = adjacency @ (matmul(hidden, weight) if isinstance(hidden, Tensor) else hidden @ weight) + bias
            if layer < len(self.weights) - 1:
                hidden = self.activation(hidden, generator)
        assert isinstance(hidden, Tensor)
        return hidden


def _aggregates_first(adjacency: SparseOperator, weight: Tensor) -> bool:
    """Whether (Â H) W costs less than Â (H W): so it is where W widens, or where Â has far fewer rows than columns."""
    rows, columns = adjacency.shape
    narrow, wide = weight.shape
    saved = (columns - rows) * narrow * wide
    return saved + _SPARSE_COST * adjacency.nnz * (wide - narrow) > 0
