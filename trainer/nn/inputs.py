"""A graph as the encoder wants it: features and edges on the training device, in the training precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.graph import Graph
from trainer.nn.encoder import Features
from trainer.nn.sparse import operator_of
from trainer.nn.views import Propagation


@dataclass(frozen=True)
class Inputs:
    """What training reads. `labels` serve diagnostics only and never reach a gradient."""

    x: Features
    propagation: Propagation
    num_nodes: int
    num_features: int
    labels: Tensor | None
    device: torch.device
    dtype: torch.dtype


def prepare(graph: Graph, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Move a graph to the device; sparse features stay sparse and get their transpose for backward."""
    x = graph.x.to(device=device, dtype=dtype)
    features: Features = x
    if x.layout == torch.sparse_csr:
        features = operator_of(x)
    weight = None if graph.weight is None else graph.weight.to(device)
    propagation = Propagation(graph.indptr.to(device), graph.indices.to(device), weight, dtype)
    labels = None if graph.y is None else graph.y.to(device)
    return Inputs(features, propagation, graph.num_nodes, graph.num_features, labels, device, dtype)
