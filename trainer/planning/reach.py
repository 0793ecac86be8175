"""How much of a graph one step touches, told before anything is sampled (trainer.planning.estimate)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.config import TrainSpec
from trainer.methods.interface import Scope
from trainer.planning.shape import GraphShape
from trainer.spec.training import SamplingSpec

_SKEW = 4  # times the mean degree of those found by following edges; 3 to 4 in the public sets


@dataclass(frozen=True)
class Reach:
    """What one pass of the encoder touches, from the seeds outwards; for a whole graph every number is that of all."""

    rows: tuple[int, ...]  # nodes within 0, 1, … L hops
    edges: tuple[int, ...]  # edges into the nodes within 0, … L - 1 hops

    @property
    def seeds(self) -> int:
        return self.rows[0]

    @property
    def nodes(self) -> int:
        return self.rows[-1]


def reached(spec: TrainSpec, shape: GraphShape) -> Reach:
    """Nodes and edges of one batch, with degrees taken as exponentially distributed around their mean μ.

    A seed then has μ (1 - e^(-k/μ)) of at most k neighbours, a node found by following an edge more (it is found the
    more often the more edges it has), and of m edges drawn a share (m/N) / (1 + m/N) of all nodes is met.
    """
    n, layers = shape.nodes, spec.encoder.layers
    batch, fan_outs = spec.sampling.batch_size, spec.sampling.num_neighbors
    if batch is None or fan_outs is None:
        return Reach((n,) * (layers + 1), (shape.edges,) * layers)
    mean = max(shape.edges / n, 1e-9)
    new = min(batch, n)
    rows, edges = [new], [0]
    for hop, k in enumerate(fan_outs):
        if k < 0:
            each = mean if hop == 0 else _SKEW * mean
        else:
            each = mean * -math.expm1(-k / mean) if hop == 0 else 2 * mean - math.exp(-k / mean) * (2 * mean + k)
        drawn = min(new * each, shape.edges)
        new = round((n - rows[-1]) * drawn / (n + drawn))
        rows.append(rows[-1] + new)
        edges.append(min(shape.edges, edges[-1] + round(drawn)))
    return Reach(tuple(rows), tuple(edges[1:]))


def contrasted(spec: TrainSpec, shape: GraphShape) -> tuple[int, int]:
    """Anchors this process holds, and negatives each of them meets."""
    n, workers, batch = shape.nodes, spec.run.workers, spec.sampling.batch_size
    if spec.sampling.negatives == "graph" or batch is None:
        return -(-n // workers), n
    anchors = min(batch, n)
    return anchors, n if spec.sampling.negatives == "bank" else min(n, anchors * workers)


def scope_of(sampling: SamplingSpec) -> Scope:
    """What a planned section asks of a method."""
    if sampling.negatives == "graph":
        return "whole" if sampling.batch_size is None else "cached"
    return "bank" if sampling.negatives == "bank" else "batch"
