"""From a graph to pairs of embedded views: whole, by sampled batches, or by batches with cached gradients."""

from __future__ import annotations

import torch

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.distributed.team import Team
from trainer.encoding.pair import Encoding
from trainer.encoding.whole import WholeGraph
from trainer.nn.encoder import Encoder


def build_encoding(
    spec: TrainSpec, graph: Graph, encoder: Encoder, team: Team, device: torch.device, dtype: torch.dtype
) -> Encoding:
    """What a planned spec asks for (trainer.planning.plan fills in scope, batch and neighbours)."""
    sampling = spec.sampling
    if sampling.batch_size is None:
        return WholeGraph(spec, graph, encoder, device, dtype)
    from trainer.encoding.cached import CachedGraph  # only here: PyG takes seconds to import
    from trainer.encoding.sampled import SampledGraph
    from trainer.sampling.batches import Batches

    assert sampling.num_neighbors is not None
    batches = Batches(
        graph, batch_size=sampling.batch_size * team.size, num_neighbors=sampling.num_neighbors, seed=spec.run.seed,
        backend=sampling.backend, loader_workers=sampling.loader_workers,
    )  # fmt: skip
    sampled = SampledGraph(spec, graph, encoder, batches, team, device, dtype)
    return CachedGraph(sampled) if sampling.negatives == "graph" else sampled
