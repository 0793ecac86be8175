"""What a spec leaves open, decided before the run from the graph's size and the memory there is.

    contrast    every node against every node while that is feasible in time (`EXACT_UP_TO` nodes), else by batches
    batch       the whole graph at once if it fits, else the largest batch that does
    tile, keep  1024 and 1 GB, less where there is no room

The choice goes to plan.json in the run directory and holds for the rest of the run, also on another machine. If memory
runs out all the same, the next smaller plan goes on: half the tile, then half the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainer.config import SamplingSpec, TrainSpec, spec_hash
from trainer.errors import OutOfMemory
from trainer.estimate import Estimate, GraphShape, estimate
from trainer.nn.tiled import DEFAULT_TILE

EXACT_UP_TO = 50_000  # nodes; the cost of exact contrast grows with N², and at 50,000 an epoch takes minutes on a CPU
DEFAULT_KEEP_MB = 1_024
DEFAULT_FAN_OUT = 10
BATCHES = (4_096, 2_048, 1_024, 512, 256, 128)  # tried in this order
SMALLEST_TILE, SMALLEST_BATCH = 64, 32


@dataclass(frozen=True)
class Plan:
    """A spec with nothing left open, what it needs, and why it is so."""

    spec: TrainSpec
    memory: Estimate
    limit: int  # bytes planned with
    reason: str
    previous: tuple[str, ...] = ()  # hashes of the larger plans that ran out of memory

    @property
    def name(self) -> str:
        """Hash of what is trained."""
        return spec_hash(self.spec)

    def document(self) -> dict[str, Any]:
        """For plan.json."""
        return {
            "sampling": self.spec.sampling.model_dump(mode="json"), "spec_hash": self.name, "reason": self.reason,
            "memory": self.memory.document(), "limit": self.limit, "previous": list(self.previous),
        }  # fmt: skip


def make_plan(spec: TrainSpec, shape: GraphShape, limit: int) -> Plan:
    """Fill in what is open.

    Raises:
        OutOfMemory: not even the smallest choice fits the limit.
    """
    scope, why = _scope(spec, shape)
    tried: list[tuple[TrainSpec, Estimate]] = []
    for batch in _batches(spec, shape, scope):
        for tile, keep in _tiles(spec.sampling):
            candidate = _filled(spec, scope, batch, tile, keep)
            memory = estimate(candidate, shape)
            tried.append((candidate, memory))
            if memory.total <= limit:
                return Plan(candidate, memory, limit, why)
    _, memory = min(tried, key=lambda item: item[1].total)
    raise OutOfMemory(
        f"the run needs about {memory.total / 1e9:.1f} GB even in its smallest form, most of it for "
        f"{memory.largest}, and may use {limit / 1e9:.1f} GB. {_advice(memory.largest)}"
    )


def restore_plan(spec: TrainSpec, document: dict[str, Any], shape: GraphShape) -> Plan:
    """The plan of an earlier start of the run, from plan.json; memory-only choices may be made anew by the spec."""
    planned = SamplingSpec.model_validate(document["sampling"])
    memory_only = {name: value for name in ("tile", "keep_mb") if (value := getattr(spec.sampling, name)) is not None}
    spec = spec.model_copy(update={"sampling": planned.model_copy(update=memory_only)})
    return Plan(spec, estimate(spec, shape), document["limit"], document["reason"], tuple(document["previous"]))


def smaller(plan: Plan, shape: GraphShape) -> Plan | None:
    """The next plan to try after memory ran out, or None when there is nothing left to halve."""
    sampling = plan.spec.sampling
    assert sampling.tile is not None
    if sampling.tile > SMALLEST_TILE or sampling.keep_mb:
        changes: dict[str, Any] = {"tile": max(SMALLEST_TILE, sampling.tile // 2), "keep_mb": 0}
    elif sampling.batch_size is not None and sampling.batch_size > SMALLEST_BATCH:
        changes = {"batch_size": sampling.batch_size // 2}
    else:
        return None
    spec = plan.spec.model_copy(update={"sampling": sampling.model_copy(update=changes)})
    what = ", ".join(f"{name} {value}" for name, value in changes.items())
    reason = f"{plan.reason}; after memory ran out: {what}"
    previous = plan.previous if spec_hash(spec) == plan.name else (*plan.previous, plan.name)
    return replace(plan, spec=spec, memory=estimate(spec, shape), reason=reason, previous=previous)


def _scope(spec: TrainSpec, shape: GraphShape) -> tuple[str, str]:
    asked = spec.sampling.negatives
    if asked is not None:
        return asked, f"scope {asked} as asked"
    if spec.sampling.batch_size is not None:
        return "batch", "scope batch, because a batch size was given"
    if shape.nodes <= EXACT_UP_TO:
        return "graph", f"exact contrast: at most {EXACT_UP_TO} nodes"
    return "batch", f"scope batch: more than {EXACT_UP_TO} nodes, where exact contrast takes too long"


def _batches(spec: TrainSpec, shape: GraphShape, scope: str) -> list[int | None]:
    """Batch sizes to try, best first; None encodes the whole graph at once."""
    asked = spec.sampling.batch_size
    if asked is not None:
        return [asked]
    most = max(2, shape.nodes // spec.run.workers)
    sizes: list[int | None] = [size for size in BATCHES if size <= most] or [most]
    samples = spec.sampling.num_neighbors is not None and any(k >= 0 for k in spec.sampling.num_neighbors)
    whole = scope == "graph" and spec.run.workers == 1 and not samples
    return [None, *sizes] if whole else sizes if scope == "graph" else sizes[1:] or sizes


def _tiles(sampling: SamplingSpec) -> list[tuple[int, int]]:
    """Tile sides and kept megabytes to try, fastest first."""
    keeps = [sampling.keep_mb] if sampling.keep_mb is not None else [DEFAULT_KEEP_MB, 256, 0]
    tiles = [sampling.tile] if sampling.tile is not None else [DEFAULT_TILE, DEFAULT_TILE // 2, DEFAULT_TILE // 4]
    return [(tiles[0], keep) for keep in keeps] + [(tile, keeps[-1]) for tile in tiles[1:]]


def _filled(spec: TrainSpec, scope: str, batch: int | None, tile: int, keep: int) -> TrainSpec:
    neighbors = spec.sampling.num_neighbors
    if batch is not None and neighbors is None:
        neighbors = ((-1,) if scope == "graph" else (DEFAULT_FAN_OUT,)) * spec.encoder.layers
    changes = {"negatives": scope, "batch_size": batch, "num_neighbors": neighbors, "tile": tile, "keep_mb": keep}
    return spec.model_copy(update={"sampling": spec.sampling.model_copy(update=changes)})


def _advice(part: str) -> str:
    return {
        "graph": "Import it with `nml datasets import`: an imported graph stays on disk.",
        "features": "Import the graph with `nml datasets import`: imported features stay on disk.",
        "optimiser": "Lower encoder.hidden or encoder.dim.",
        "bank": "Set sampling.negatives=batch, or lower encoder.dim.",
        "evaluation": "Lower evaluation.max_probe_nodes and evaluation.max_cluster_nodes.",
    }.get(part, "Lower encoder.hidden or sampling.num_neighbors, or give it more with --memory-limit.")
