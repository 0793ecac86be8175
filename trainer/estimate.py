"""How much memory a run will need, part by part, before it starts (`nml estimate`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainer.config import TrainSpec
from trainer.graph import Graph

RUNTIME = 450 * 10**6  # the interpreter with torch, scikit-learn and MLflow loaded


@dataclass(frozen=True)
class GraphShape:
    """What the need depends on."""

    nodes: int
    edges: int  # stored directed ones
    features: int
    nonzeros: int | None = None  # of sparse features; None: dense
    weighted: bool = False
    mapped: bool = False  # on disk, read by slices


@dataclass(frozen=True)
class Estimate:
    """Bytes by part; `total` is the peak, as phases follow each other."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        always = ("runtime", "graph", "features", "optimiser", "bank")
        phases = (("encoding", "contrast", "tiles"), ("export",), ("evaluation",))
        return sum(self.parts.get(name, 0) for name in always) + max(
            sum(self.parts.get(name, 0) for name in phase) for phase in phases
        )

    @property
    def largest(self) -> str:
        """The part that dominates, the runtime apart."""
        return max((name for name in self.parts if name != "runtime"), key=lambda name: self.parts[name])

    def document(self) -> dict[str, Any]:
        return {"total": self.total, "largest": self.largest, "parts": self.parts}


def shape_of(graph: Graph) -> GraphShape:
    """The shape of a graph that is loaded or mapped."""
    sparse = graph.x.layout == torch.sparse_csr
    return GraphShape(
        graph.num_nodes, graph.num_edges, graph.num_features, graph.x.values().numel() if sparse else None,
        graph.weight is not None,
    )  # fmt: skip


def estimate(spec: TrainSpec, shape: GraphShape) -> Estimate:
    """Bytes a planned spec needs on a graph of this shape."""
    return Estimate({"runtime": RUNTIME, "graph": 16 * shape.edges})
