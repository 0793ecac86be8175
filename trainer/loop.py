"""Train a spec in a run directory: one loop for every method, made to be interrupted.

- Same seed, same CPU, same thread count: same numbers to the bit, also after kill -9 and resume.
- SIGTERM or SIGINT finishes the step, checkpoints and ends as `Cancelled`; resume goes on from there.
- What does not fit in memory is planned for (trainer.plan): batches, tiles, memory maps. If memory runs out all the
  same, the run goes on from its last checkpoint with a smaller tile, then a smaller batch.
- `run.workers` > 1 trains the same loop in a team of processes on Ray (trainer.parallel); rank 0 writes the run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from trainer import version
from trainer.callbacks import Callback, Result
from trainer.config import TrainSpec
from trainer.datasets import load
from trainer.errors import Cancelled, InvalidInput, OutOfMemory
from trainer.estimate import shape_of
from trainer.finish import finish
from trainer.graph import Graph
from trainer.interruption import StopRequest, translated_failures
from trainer.memory import peak_rss, usable_memory
from trainer.methods import build_method
from trainer.parallel.stop import Stop, stop_requested
from trainer.parallel.team import Team
from trainer.plan import Plan, make_plan, restore_plan, smaller
from trainer.relay import Relay
from trainer.run.checkpoint import load_newest, save_checkpoint
from trainer.run.directory import RunDirectory
from trainer.step import EpochFigures, take_step

log = logging.getLogger("trainer")
SECONDS_BETWEEN_STEP_EVENTS = 2.0


def fit(
    spec: TrainSpec,
    run_dir: str | Path,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    graph: Graph | None = None,
    memory_limit: int | None = None,
) -> Result:
    """Train `spec`, leave everything in `run_dir`, and return its metrics and paths.

    Args:
        resume: go on with a run that is in `run_dir`; without one, start it. A finished run is finished again from its
            last checkpoint, which changes nothing.
        graph: use this graph instead of loading `spec.data`; the caller vouches that they are the same.
        memory_limit: bytes to plan with; None: most of the machine's or container's.

    Raises:
        TrainerError: of the kind that says what to do (trainer.errors).
    """
    run = RunDirectory.open(Path(run_dir), spec, resume=resume)
    try:
        with _log_to(run.path / "log.txt"):
            try:
                with translated_failures(), StopRequest() as stop:
                    _fit(run, spec, graph, memory_limit or usable_memory(), callbacks, stop)
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
    with translated_failures():
        graph = load(spec.data)
        plan = restore_plan(spec, document, shape_of(graph))
        _train(run, plan, graph, team, lambda _: False, lambda: stop_requested(run_dir))


def _fit(
    run: RunDirectory, spec: TrainSpec, graph: Graph | None, limit: int, callbacks: Sequence[Callback],
    stop: StopRequest,
) -> None:  # fmt: skip
    """Plan, train, and go on with smaller plans for as long as memory runs out."""
    if spec.run.threads and spec.run.workers == 1:
        torch.set_num_threads(spec.run.threads)
    _device(spec)  # refuse a missing GPU before anything is loaded
    graph = graph or load(spec.data)
    for note in graph.notes:
        log.info("%s: %s", graph.name, note)
    shape = shape_of(graph)
    plan = make_plan(spec, shape, limit) if run.plan is None else restore_plan(spec, run.plan, shape)
    while True:
        run.write_plan(plan.document())
        log.info("plan: %s; %s", plan.reason, plan.spec.sampling.model_dump_json())
        log.info(
            "memory: about %.0f MB of %.0f, most for %s", plan.memory.total / 1e6, limit / 1e6, plan.memory.largest
        )
        relay = Relay(run.path, plan.spec, callbacks)
        try:
            with translated_failures():
                if spec.run.workers > 1:
                    from trainer.parallel.ray_train import fit_parallel

                    fit_parallel(plan.spec, run.path, on_event=relay, should_stop=lambda: stop.requested)
                else:
                    _train(run, plan, graph, Team.solo(), relay, lambda: "cancel" if stop.requested else None)
            return
        except OutOfMemory as error:
            next_plan = smaller(plan, shape)
            if next_plan is None:
                raise
            log.warning("memory ran out (%s); going on from the last checkpoint: %s", error, next_plan.reason)
            plan = next_plan


def _train(
    run: RunDirectory, plan: Plan, graph: Graph, team: Team, relay: Callable[[dict], bool],
    stop: Callable[[], Stop | None],
) -> None:  # fmt: skip
    """Epoch after epoch, step after step, from the newest checkpoint on; only rank 0 asks `relay` and `stop`."""
    spec, started = plan.spec, time.perf_counter()
    device = _device(spec)
    method = build_method(spec, graph, device, team)
    leads = team.rank == 0

    def emit(kind: str, **fields: object) -> bool:
        """Record an event and tell those who look on; whether one of them asks to stop."""
        return leads and relay(run.record(kind, **fields))

    place = load_newest(run.path / "checkpoints", method, spec_hash=plan.name, whole_epochs_of=plan.previous)
    if leads:
        run.rewind(place.epoch)
    emit(
        "resume" if place.epoch or place.figures.steps else "start", epoch=place.epoch, spec_hash=plan.name,
        version=version(), device=str(device), nodes=graph.num_nodes, edges=graph.num_edges, tags=_tags(spec, device),
    )  # fmt: skip
    log.info("%s: %d nodes, %d edges, epoch %d of %d, spec %s", graph.name, graph.num_nodes, graph.num_edges,
             place.epoch, spec.optimiser.epochs, plan.name[:12])  # fmt: skip
    if spec.sampling.batch_size is not None:
        from trainer.sampling.backends import available

        log.info("neighbour sampler: %s (installed: %s)", spec.sampling.backend, ", ".join(available()))

    early = False
    saved = time.monotonic()

    def checkpoint() -> None:
        nonlocal saved
        if leads:
            keep = spec.run.keep_checkpoints
            path = save_checkpoint(run.path / "checkpoints", method, place, spec_hash=plan.name, keep=keep)
            emit("checkpoint", epoch=place.epoch, path=str(path.relative_to(run.path)))
        saved = time.monotonic()

    def cancel() -> None:
        emit("cancelled", epoch=place.epoch)
        raise Cancelled(f"stopped on request after epoch {place.epoch}; `--resume` goes on from there")

    while place.epoch < spec.optimiser.epochs and not early:
        epoch, tick, told = place.epoch + 1, time.perf_counter(), time.monotonic()
        for views in method.views(epoch, start=place.figures.steps):
            metrics = take_step(method, views)
            place.figures.add(metrics)
            if place.figures.steps == method.steps:
                break
            if leads and time.monotonic() - told >= SECONDS_BETWEEN_STEP_EVENTS:
                told = time.monotonic()
                emit("step", epoch=epoch, step=place.figures.steps, steps=method.steps, loss=metrics["loss"])
            stops = team.any(leads and stop() == "cancel")
            if stops or team.any(leads and time.monotonic() - saved > 60 * spec.run.checkpoint_minutes):
                checkpoint()
            if stops:
                cancel()
        figures = place.figures.means() | {"seconds": time.perf_counter() - tick, "rss_mb": peak_rss() / 2**20}
        if leads and spec.run.diagnose_every and (epoch == 1 or epoch % spec.run.diagnose_every == 0):
            figures |= method.diagnose(views)
        place.epoch, place.figures = epoch, EpochFigures()
        early = team.any(emit("epoch", epoch=epoch, metrics=figures) or (leads and stop() == "finish"))
        finished = early or epoch == spec.optimiser.epochs
        stops = team.any(leads and stop() == "cancel")
        if finished or stops or epoch % spec.run.checkpoint_every == 0:
            checkpoint()
        if stops and not finished:
            cancel()
    if leads:
        finish(run, plan, method, graph, emit, stop, early=early, started=started)


def _result(run: RunDirectory) -> Result:
    metrics = json.loads((run.path / "metrics.json").read_text(encoding="utf-8"))
    return Result(
        run.path, metrics, run.path / "embeddings" / "vectors.npy", metrics["epoch"], metrics["stopped_early"]
    )


def _device(spec: TrainSpec) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if spec.run.device == "cuda" and not has_cuda:
        raise InvalidInput("run.device is cuda, and torch sees no GPU here. Set run.device to auto or cpu.")
    return torch.device("cuda" if has_cuda and spec.run.device != "cpu" else "cpu")


def _tags(spec: TrainSpec, device: torch.device) -> dict[str, str]:
    return {
        "dataset": spec.data.name, "method": spec.method, "metric": spec.metric.kind, "preset": spec.preset or "",
        "protocol": spec.evaluation.protocol, "seed": str(spec.run.seed), "version": version(), "device": str(device),
        "negatives": spec.sampling.negatives or "", "torch": torch.__version__,
    }  # fmt: skip


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
