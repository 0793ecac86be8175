"""Train a spec in a run directory: one way for every method, made to be interrupted.

- Same seed, same CPU, same thread count: same numbers to the bit, also after kill -9 and resume.
- SIGTERM or SIGINT finishes the step, checkpoints and ends as `Cancelled`; resume goes on from there.
- What does not fit in memory is planned for (trainer.planning): batches, tiles, memory maps. If memory runs out all the
  same, the run goes on from its last checkpoint with a smaller tile, then a smaller batch.
- `run.workers` > 1 trains the same loop in a team of processes on Ray (trainer.parallel); rank 0 writes the run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from trainer.callbacks import Callback, Result
from trainer.config import TrainSpec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.errors import InvalidInput, OutOfMemory
from trainer.parallel.stop import stop_requested
from trainer.parallel.team import Team
from trainer.planning.memory import usable_memory
from trainer.planning.plan import make_plan, restore_plan, shrink, smaller
from trainer.planning.shape import shape_of
from trainer.process.stop_signals import StopRequest
from trainer.run.directory import RunDirectory
from trainer.training.attempt import Training
from trainer.training.interruption import translated_failures
from trainer.training.relay import Relay

log = logging.getLogger("trainer")


def fit(
    spec: TrainSpec,
    run_dir: str | Path,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    graph: Graph | None = None,
    memory_limit: int | None = None,
    shrunk: int = 0,
) -> Result:
    """Train `spec`, leave everything in `run_dir`, and return its metrics and paths.

    Args:
        resume: go on with a run that is in `run_dir`; without one, start it. A finished run is finished again from its
            last checkpoint, which changes nothing.
        graph: use this graph instead of loading `spec.data`; the caller vouches that they are the same.
        memory_limit: bytes to plan with; None: most of the machine's or container's.
        shrunk: how often memory has run out in a way that the run itself could not survive (the kernel killed it); the
            first plan is made smaller so many times, whatever happened in between.

    Raises:
        TrainerError: of the kind that says what to do (trainer.errors).
    """
    run = RunDirectory.open(Path(run_dir), spec, resume=resume)
    try:
        with _log_to(run.path / "log.txt"):
            try:
                with translated_failures(), StopRequest("finishing this step, then checkpointing") as stop:
                    _fit(run, spec, graph, memory_limit or usable_memory(), shrunk, callbacks, stop)
                result = _result(run)
            except BaseException as error:
                log.info("ended by %s: %s", type(error).__name__, error)
                for callback in callbacks:
                    callback.on_failure(error)
                raise
        for callback in callbacks:
            callback.on_end(result)
        return result
    finally:
        run.close()


def train_in_team(spec: TrainSpec, run_dir: Path, team: Team) -> None:
    """One worker's part in a run that `fit` has opened and planned; a restarted worker goes on from the checkpoint."""
    run = RunDirectory.attach(run_dir, spec)
    document = run.plan
    assert document is not None
    logs = _log_to(run.path / "log.txt") if team.rank == 0 else nullcontext()
    with logs, translated_failures():
        graph = load(spec.data)
        plan = restore_plan(spec, document, shape_of(graph))
        Training(run, plan, graph, _device(spec), team, lambda _: False, lambda: stop_requested(run_dir)).go()


def _fit(
    run: RunDirectory, spec: TrainSpec, graph: Graph | None, limit: int, shrunk: int,
    callbacks: Sequence[Callback], stop: StopRequest,
) -> None:  # fmt: skip
    """Plan, train, and go on with smaller plans for as long as memory runs out."""
    alone = spec.run.workers == 1
    if alone:
        device = _device(spec)  # refuse a missing GPU before anything is loaded
        if spec.run.threads:
            torch.set_num_threads(spec.run.threads)
    graph = graph or load(spec.data)
    for note in graph.notes:
        log.info("%s: %s", graph.name, note)
    shape = shape_of(graph)
    plan = make_plan(spec, shape, limit) if run.plan is None else restore_plan(spec, run.plan, shape)
    plan = shrink(plan, shape, shrunk)
    while True:
        run.write_plan(plan.document())
        log.info("plan: %s; %s", plan.reason, plan.spec.sampling.model_dump_json())
        log.info(
            "memory: about %.0f MB of %.0f, most for %s", plan.memory.total / 1e6, limit / 1e6, plan.memory.largest
        )
        relay = Relay(run.path, plan.spec, callbacks)
        try:
            with translated_failures():
                if alone:
                    Training(
                        run, plan, graph, device, Team.solo(), relay, lambda: "cancel" if stop.is_set() else None
                    ).go()
                else:
                    from trainer.parallel.ray_train import fit_parallel

                    fit_parallel(plan.spec, run.path, on_event=relay, should_stop=stop.is_set)
            return
        except OutOfMemory as error:
            next_plan = smaller(plan, shape)
            if next_plan is None:
                raise
            log.warning("memory ran out (%s); going on from the last checkpoint: %s", error, next_plan.reason)
            plan = next_plan


def _result(run: RunDirectory) -> Result:
    """From metrics.json; without `run.export`, `embeddings` is where they would be."""
    metrics = json.loads((run.path / "metrics.json").read_text(encoding="utf-8"))
    return Result(
        run.path, metrics, run.path / "embeddings" / "vectors.npy", metrics["epoch"], metrics["stopped_early"]
    )


def _device(spec: TrainSpec) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if spec.run.device == "cuda" and not has_cuda:
        raise InvalidInput("run.device is cuda, and torch sees no GPU here. Set run.device to auto or cpu.")
    return torch.device("cuda" if has_cuda and spec.run.device != "cpu" else "cpu")


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()
