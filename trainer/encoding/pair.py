"""What one encoder step looks at: two views of some nodes, the way from them to embeddings, and the way back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Pair(ABC):
    """Two views of the same nodes.

    nodes: [n] their ids in the order of the embeddings' rows; noise: the stream for whatever else draws in this step.
    """

    nodes: Tensor
    noise: torch.Generator

    @abstractmethod
    def encode(self, encoder: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings of both views, [n, d] each, with fresh noise at each call; the last ones can go `backward`.

        encoder: another than the run's own, such as a moving average of it.
        """

    def clean(self, encoder: nn.Module | None = None) -> Tensor:
        """Embeddings of the same nodes with all edges and features, [n, d]."""
        raise NotImplementedError("only on the whole graph: leave other scopes out of the method's `scopes`")

    def neighbours(self) -> tuple[Tensor, Tensor]:
        """Which edges each view kept: CSR of ones, [N, N]; row i lists those that send to i, without i itself."""
        raise NotImplementedError("only on the whole graph: leave other scopes out of the method's `scopes`")

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to the encoder's parameters."""
        loss.backward()


class Encoding(ABC):
    """A way of turning a graph into pairs; `steps` of them make an epoch."""

    steps: int

    @abstractmethod
    def pairs(self, epoch: int, start: int = 0) -> Iterator[Pair]:
        """The epoch's pairs, from step `start` on; the same ones whenever they are asked for."""
