"""Decided once for all trials of a sweep: how they sample, how many run at a time, and what memory each may use.

A run fills in what its spec leaves open from the memory there is. In a sweep that would make trials differ in what
nobody searched, and the best one could not be trained again elsewhere. So the choice is made for the base, written to
the journal, and belongs to every trial's settings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trainer.errors import Infrastructure, InvalidInput, OutOfMemory
from trainer.parallel.connection import LOCAL
from trainer.planning.cpus import usable_cpus
from trainer.planning.memory import usable_memory
from trainer.planning.plan import make_plan, size
from trainer.planning.shape import GraphShape
from tuner.config import SweepSpec, trial_spec
from tuner.space import Value

_DECIDED = ("negatives", "batch_size", "num_neighbors")  # what changes what is learned; tile and kept memory do not


class Arrangement(NamedTuple):
    """How trials run."""

    concurrency: int
    memory: int | None  # bytes for each; None: each machine of a cluster knows its own
    sampling: dict[str, Value]  # settings of every trial, by dotted path


def arrange(
    spec: SweepSpec, shape: GraphShape, address: str, resources: dict[str, float], decided: dict[str, Value] | None
) -> Arrangement:
    """Find how many trials fit side by side.

    Args:
        resources: what Ray has: CPU, GPU, memory.
        decided: the sampling of an earlier start of the sweep, which holds.

    Raises:
        InvalidInput, Infrastructure: this machine, or the cluster at the moment, has not enough for one trial.
        OutOfMemory: so many trials as asked for, or even one, do not fit in memory.
    """
    most = _places(spec, address, resources)
    asked = min(most, spec.concurrency) if spec.concurrency else None
    for concurrency in [asked] if asked else range(most, 0, -1):
        share = _share(spec, address, concurrency)
        try:
            plan = make_plan(trial_spec(spec, decided or {}), shape, share)
        except OutOfMemory as error:
            if asked or concurrency == 1:
                raise OutOfMemory(
                    f"{concurrency} trials at a time have {size(share)} of memory each, and that does not do: {error} "
                    "Or lower concurrency, or raise resources.memory_gb."
                ) from error
            continue
        memory = share if address == LOCAL or spec.resources.memory_gb else None
        return Arrangement(concurrency, memory, _open_fields(spec, plan.spec.sampling.model_dump(mode="json")))
    raise AssertionError("there is at least one number to try")


def _places(spec: SweepSpec, address: str, has: dict[str, float]) -> int:
    """Trials that Ray could place at once."""
    wants = spec.resources
    room = [int(has.get("CPU", 0) // wants.cpus)]
    if wants.gpus:
        room.append(int(has.get("GPU", 0) / wants.gpus))
    if wants.memory_gb is not None:
        room.append(int(has.get("memory", 0) // (wants.memory_gb * 2**30)))
    if min(room) < 1:
        kind = InvalidInput if address == LOCAL else Infrastructure
        place = "this machine" if address == LOCAL else f"the Ray cluster at {address}"
        raise kind(
            f"a trial asks for {wants.cpus} CPUs, {wants.gpus:g} GPUs and {wants.memory_gb or 0:g} GB, and {place} has "
            f"{has.get('CPU', 0):g}, {has.get('GPU', 0):g} and {has.get('memory', 0) / 2**30:.1f}. Lower resources."
        )
    return min(room)


def _share(spec: SweepSpec, address: str, concurrency: int) -> int:
    """Bytes that a trial may plan with; of a cluster's machines we only know our own."""
    if spec.resources.memory_gb is not None:
        return int(spec.resources.memory_gb * 2**30)
    beside = concurrency if address == LOCAL else usable_cpus() // spec.resources.cpus
    return usable_memory() // max(1, beside)


def _open_fields(spec: SweepSpec, planned: dict[str, Any]) -> dict[str, Value]:
    """Of the planned sampling, what the base leaves open and nobody searches."""
    space = spec.dimensions()
    if "sampling" in space:
        return {}
    return {
        f"sampling.{name}": planned[name]
        for name in _DECIDED
        if getattr(spec.base.sampling, name) is None and f"sampling.{name}" not in space
    }
