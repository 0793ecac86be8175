"""What a spec leaves open, decided before the run from the graph's size and the memory there is.

    contrast    every node against every node while that is feasible in time (`EXACT_UP_TO` nodes) and fits, else by
                batches
    batch       the whole graph at once if it fits, else the largest batch that does
    tile, keep  1024 and 1 GB, less where there is no room

What the spec does say is never changed. The choice goes to plan.json in the run directory and holds for the rest of the
run, also on another machine. If memory runs out all the same, the next smaller plan goes on: half the tile while that
helps, then half the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainer.config import TrainSpec, spec_hash
from trainer.errors import OutOfMemory
from trainer.planning.estimate import Estimate, estimate
from trainer.planning.shape import GraphShape
from trainer.spec.training import DEFAULT_KEEP_MB, DEFAULT_TILE, SamplingSpec

EXACT_UP_TO = 50_000  # nodes; the cost of exact contrast grows with N², and at 50,000 an epoch takes minutes on a CPU
DEFAULT_FAN_OUT = 10
BATCHES = (4_096, 2_048, 1_024, 512, 256, 128)  # tried in this order
SMALLEST_TILE, SMALLEST_BATCH = 64, 32
WORTH_TRYING = 0.05  # of what training needs: a plan that saves less would only run out of memory again

_ADVICE = {
    "graph": "Import it with `nml datasets import`: an imported graph stays on disk.",
    "features": "Import the graph with `nml datasets import`: imported features stay on disk.",
    "loading": "Import your own graph with `nml datasets import`, which reads it by pieces; a public one is read anew "
    "only once, and less is needed then.",
    "optimiser": "Lower encoder.hidden, encoder.dim or method.metric.hidden.",
    "tables": "Set sampling.negatives=batch, lower encoder.dim, or choose a method that keeps less.",
    "views": "Lower sampling.batch_size or sampling.num_neighbors.",
    "tiles": "Lower sampling.keep_mb or sampling.tile.",
    "encoding": "Lower encoder.hidden, sampling.batch_size or sampling.num_neighbors.",
    "contrast": "Lower encoder.dim or method.metric.hidden, or set sampling.negatives=batch.",
    "evaluation": "Lower evaluation.max_cluster_nodes, evaluation.max_pairs_nodes and evaluation.max_probe_nodes.",
    "export": "Lower encoder.hidden and encoder.dim.",
}


@dataclass(frozen=True)
class Plan:
    """A spec with nothing left open, what it needs, and why it is so."""

    spec: TrainSpec
    memory: Estimate
    limit: int  # bytes planned with
    reason: str
    asked: SamplingSpec  # before anything was filled in
    previous: tuple[str, ...] = ()  # hashes of the larger plans that ran out of memory
    products: str = (
        "blas"  # who computes matrix products (trainer.nn.products); chosen once, so that resumed runs are equal
    )
    shrunk: int = 0  # times it was made smaller because someone outside said so (`shrink`)

    @property
    def name(self) -> str:
        """Hash of what is trained."""
        return spec_hash(self.spec)

    def document(self) -> dict[str, Any]:
        """For plan.json."""
        return {
            "sampling": self.spec.sampling.model_dump(mode="json"), "spec_hash": self.name, "reason": self.reason,
            "memory": self.memory.document(), "limit": self.limit, "previous": list(self.previous),
            "asked": self.asked.model_dump(mode="json"), "shrunk": self.shrunk,
            "products": self.products,
        }  # fmt: skip


def make_plan(spec: TrainSpec, shape: GraphShape, limit: int) -> Plan:
    """Fill in what is open, so that all processes together stay below `limit` bytes.

    Workers are taken to be on one machine; where they are not, give as limit what they have together.

    Raises:
        OutOfMemory: not even the smallest choice fits; says which part is the largest, and what would make it smaller.
    """
    smallest: Estimate | None = None
    for candidate, why in _candidates(spec, shape):
        memory = estimate(candidate, shape)
        if memory.total * spec.run.workers <= limit:
            return Plan(candidate, memory, limit, why, spec.sampling)
        if smallest is None or memory.total < smallest.total:
            smallest = memory
    assert smallest is not None
    raise OutOfMemory(_refusal(smallest, spec.run.workers, limit))


def restore_plan(spec: TrainSpec, document: dict[str, Any], shape: GraphShape) -> Plan:
    """The plan of an earlier start of the run, from plan.json, whatever memory there is now.

    Tile and kept memory change no result: where the spec says other ones than it did then, the new ones hold.
    """
    asked = SamplingSpec.model_validate(document["asked"])
    planned = SamplingSpec.model_validate(document["sampling"])
    changed = {
        name: value
        for name in ("tile", "keep_mb", "loader_workers")
        if (value := getattr(spec.sampling, name)) is not None and value != getattr(asked, name)
    }
    filled = spec.model_copy(update={"sampling": planned.model_copy(update=changed)})
    reason, previous = document["reason"], tuple(document["previous"])
    memory, shrunk = estimate(filled, shape), document.get("shrunk", 0)
    products = document.get("products", "blas")  # plans of earlier releases do not say
    return Plan(filled, memory, document["limit"], reason, spec.sampling, previous, products, shrunk)


def smaller(plan: Plan, shape: GraphShape) -> Plan | None:
    """The next plan to try after memory ran out, or None when nothing that is left to halve would free enough."""
    for changes in _reductions(plan, shape):
        spec = plan.spec.model_copy(update={"sampling": plan.spec.sampling.model_copy(update=changes)})
        memory = estimate(spec, shape)
        if memory.need("training") > (1 - WORTH_TRYING) * plan.memory.need("training"):
            continue
        before = plan.spec.sampling.model_dump()
        what = ", ".join(f"{name} {value}" for name, value in changes.items() if value != before[name])
        reason = f"{plan.reason}; memory ran out, so {what}"
        previous = plan.previous if spec_hash(spec) == plan.name else (*plan.previous, plan.name)
        return replace(plan, spec=spec, memory=memory, reason=reason, previous=previous)
    return None


def shrink(plan: Plan, shape: GraphShape, times: int) -> Plan:
    """Make a plan smaller for each time that the kernel ended the run for lack of memory, since it first started.

    The plan remembers how many of the `times` it has heard of, so that a run which is killed for another reason and
    started again does not shrink again. A plan that cannot shrink stays: there may be more memory by now.
    """
    for _ in range(plan.shrunk, times):
        plan = replace(smaller(plan, shape) or plan, shrunk=plan.shrunk + 1)
    return plan


def _reductions(plan: Plan, shape: GraphShape) -> Iterator[dict[str, Any]]:
    """What to change, the cheapest first: nothing kept and half the tile, then batches, each half the one before."""
    sampling = plan.spec.sampling
    tile, batch = sampling.tile, sampling.batch_size
    assert tile is not None
    if sampling.keep_mb or tile > SMALLEST_TILE:
        yield {"tile": max(min(SMALLEST_TILE, tile), tile // 2), "keep_mb": 0}
    if batch is None:
        for seeds in BATCHES if "cached" in plan.spec.scopes else ():
            if seeds <= shape.nodes // 2:
                yield {"batch_size": seeds, "num_neighbors": (-1,) * plan.spec.encoder.layers}
        return
    while batch > SMALLEST_BATCH:
        batch = max(SMALLEST_BATCH, batch // 2)
        yield {"batch_size": batch}


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _candidates(spec: TrainSpec, shape: GraphShape) -> Iterator[tuple[TrainSpec, str]]:
    """Ways to fill in the spec, best first, each with its reason."""
    for scope, why in _scopes(spec, shape):
        for batch in _batches(spec, shape, scope):
            part = "the whole graph at once" if batch is None else f"batches of {batch}"
            for tile, keep in _tiles(spec.sampling):
                yield _filled(spec, scope, batch, tile, keep), f"{why}; {part}"


def _scopes(spec: TrainSpec, shape: GraphShape) -> list[tuple[str, str]]:
    sampling, method = spec.sampling, spec.method
    if sampling.negatives is not None:
        return [(sampling.negatives, f"scope {sampling.negatives} as asked")]
    if sampling.batch_size is not None:
        return [("batch", "scope batch, because a batch size was given")]
    if "batch" not in spec.scopes:
        return [("graph", f"every node at once, as {method.name} needs it")]
    if spec.run.workers > 1 and "cached" not in spec.scopes:
        return [("batch", f"scope batch: {method.name} shares out batches among workers, not the whole graph")]
    if shape.nodes > EXACT_UP_TO:
        return [("batch", f"scope batch: more than {EXACT_UP_TO} nodes, where exact contrast takes too long")]
    exact = ("graph", f"exact contrast: at most {EXACT_UP_TO} nodes")
    return [exact, ("batch", "scope batch: there is no memory for exact contrast")]


def _batches(spec: TrainSpec, shape: GraphShape, scope: str) -> list[int | None]:
    """Batch sizes to try, best first; None encodes the whole graph at once."""
    asked = spec.sampling.batch_size
    if asked is not None:
        return [asked]
    most = max(2, shape.nodes // spec.run.workers)
    sizes: list[int | None] = [size for size in BATCHES if size <= most] or [most]
    samples = spec.sampling.num_neighbors is not None and any(k >= 0 for k in spec.sampling.num_neighbors)
    whole = scope == "graph" and spec.run.workers == 1 and not samples
    if scope == "graph" and "cached" not in spec.scopes:
        return [None]
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


def _refusal(memory: Estimate, workers: int, limit: int) -> str:
    part, runtime = memory.largest, memory.parts["runtime"]
    who = "the run needs" if workers == 1 else f"each of {workers} workers needs"
    advice = _ADVICE[part] if runtime * workers < limit else "The libraries alone take more."
    return (
        f"{who} about {size(memory.total)} even in its smallest form: {size(runtime)} for Python and its libraries, "
        f"and of the rest most for {part} ({size(memory.parts[part])}). "
        f"{'It' if workers == 1 else 'Together they'} may use {size(limit)}. {advice} "
        "Or give it more with --memory-limit."
    )
