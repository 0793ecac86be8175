"""Train a spec in a run directory: one loop for every method, made to be interrupted.

- Same seed, same CPU, same thread count: same numbers to the bit, also after kill -9 and resume.
- SIGTERM or SIGINT finishes the step, checkpoints and ends as `Cancelled`; resume goes on from there.
- What does not fit in memory is planned for (trainer.planning): batches, tiles, memory maps. If memory runs out all the
  same, the run goes on from its last checkpoint with a smaller tile, then a smaller batch.
- `run.workers` > 1 trains the same loop in a team of processes on Ray (trainer.parallel); rank 0 writes the run.

`fit` opens the run, `_plan_and_train` plans it, `train` is the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.callbacks import Callback, Result
from trainer.config import TrainSpec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.distributed.team import Team
from trainer.errors import InvalidInput, OutOfMemory
from trainer.evaluation.watch import watch
from trainer.learning.learner import Learner
from trainer.nn import products
from trainer.planning.memory import peak_rss, usable_memory
from trainer.planning.plan import Plan, make_plan, restore_plan, shrink, smaller
from trainer.planning.shape import shape_of
from trainer.process.stop_signals import StopRequest
from trainer.run.checkpoint import load_newest
from trainer.run.directory import RunDirectory
from trainer.run.log_file import log_to
from trainer.run.stop_file import Stop, stop_requested
from trainer.spec.training import DEFAULT_TILE
from trainer.training.failures import record_failure, translated_failures
from trainer.training.finish import finish
from trainer.training.recorder import Recorder
from trainer.training.relay import Relay
from trainer.training.stages import Stages

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
    own_process: bool = False,
) -> Result:
    """Train `spec`, leave everything in `run_dir`, and return its metrics and paths.

    Args:
        resume: go on with the run in `run_dir`, or start it if there is none. A finished run is finished again from its
            last checkpoint, which changes nothing.
        graph: use this graph instead of loading `spec.data`; the caller vouches that they are the same.
        memory_limit: bytes to plan with; None: most of the machine's or container's.
        shrunk: how often the kernel has killed this run for want of memory; the first plan is made smaller so many
            times, whatever happened in between.
        own_process: this process was started for this run, so that its start counts as a stage of it.

    Raises:
        TrainerError: of the kind that says what to do (trainer.errors).
    """
    with closing(RunDirectory.open(Path(run_dir), spec, resume=resume)) as run:
        with log_to(run.path / "log.txt"):
            stages = Stages(run.record)
            try:
                with translated_failures(), StopRequest("finishing this step, then checkpointing") as stop:
                    if own_process:
                        stages.begin_with_process()
                    _plan_and_train(run, spec, graph, memory_limit or usable_memory(), shrunk, callbacks, stop, stages)
                result = Result.read(run.path)
            except BaseException as error:
                log.info("ended by %s: %s", type(error).__name__, error)
                record_failure(run, error)
                for callback in callbacks:
                    callback.on_failure(error)
                raise
        for callback in callbacks:
            callback.on_end(result)
        return result


def _plan_and_train(
    run: RunDirectory, spec: TrainSpec, graph: Graph | None, limit: int, shrunk: int,
    callbacks: Sequence[Callback], stop: StopRequest, stages: Stages,
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
    stages.end("load")
    shape = shape_of(graph)
    if run.plan is None:
        plan = make_plan(spec, shape, limit)
        plan = replace(plan, products=_choose_products(plan.spec, shape.nodes))
    else:
        plan = restore_plan(spec, run.plan, shape)
    plan = shrink(plan, shape, shrunk)
    while True:
        run.write_plan(plan.document())
        log.info("plan: %s; %s; products by %s", plan.reason, plan.spec.sampling.model_dump_json(), plan.products)
        log.info(
            "memory: about %.0f MB of %.0f, most for %s", plan.memory.total / 1e6, limit / 1e6, plan.memory.largest
        )
        stages.end("plan")
        relay = Relay(run.path, plan.spec, callbacks)
        try:
            with translated_failures(), products.using(plan.products):
                if alone:
                    train(
                        run, plan, graph, device, Team.solo(), relay, lambda: "cancel" if stop.is_set() else None,
                        stages,
                    )  # fmt: skip
                else:
                    from trainer.parallel.ray_train import fit_parallel

                    fit_parallel(
                        plan.spec, run.path, train="trainer.loop:train_in_team", on_event=relay,
                        should_stop=stop.is_set,
                    )  # fmt: skip
            return
        except OutOfMemory as error:
            stages.end("out of memory")  # what the attempt took beyond the stages it had finished
            next_plan = smaller(plan, shape)
            if next_plan is None:
                raise
            log.warning("memory ran out (%s); going on from the last checkpoint: %s", error, next_plan.reason)
            plan = next_plan


def train(
    run: RunDirectory, plan: Plan, graph: Graph, device: torch.device, team: Team,
    on_event: Callable[[dict[str, Any]], bool], stop: Callable[[], Stop | None], stages: Stages | None = None,
) -> None:  # fmt: skip
    """Train a planned run from its newest checkpoint on, then export and evaluate if the spec asks for it.

    In a team every worker takes the same steps; rank 0 alone writes the run directory and is asked to stop.

    Args:
        on_event: gets every event; returns whether the run should end early, as finished.
        stop: whether the run should end: `finish` after this epoch, `cancel` after this step.
        stages: the run's stopwatch, if it is in this process.

    Raises:
        Cancelled: stopped on request, after a checkpoint.
        TrainerError: whatever else ends the run (trainer.errors).
    """
    started, spec, epochs = time.perf_counter(), plan.spec, plan.spec.optimiser.epochs
    learner = Learner(spec, graph, device, team)
    recorder = Recorder(run, plan, team, on_event, stop, stages)

    progress = load_newest(run.path / "checkpoints", learner, spec_hash=plan.name, whole_epochs_of=plan.previous)
    recorder.start(progress, graph, device)

    early, step = learner.is_done, None
    while progress.epoch < epochs and not early:
        epoch, epoch_started, cpu_started = progress.epoch + 1, time.perf_counter(), time.process_time()

        for step in learner.steps_of(epoch, start=progress.steps):
            metrics = learner.step(step)
            progress.add(metrics)
            if progress.steps == learner.steps:
                break  # what follows the last step is the epoch's
            recorder.emit_sometimes("step", epoch=epoch, step=progress.steps, steps=learner.steps, loss=metrics["loss"])
            cancelled = team.any(recorder.asked_to("cancel"))
            if cancelled or team.any(recorder.checkpoint_is_overdue()):
                recorder.checkpoint(learner, progress)
            if cancelled:
                recorder.cancel(progress.epoch, f"after epoch {progress.epoch}")

        figures = progress.end_epoch()
        learner.take_note(figures)
        figures |= {
            "seconds": time.perf_counter() - epoch_started, "cpu_seconds": time.process_time() - cpu_started,
            "rss_mb": peak_rss() / 2**20,
        }  # fmt: skip
        if step is not None and recorder.leads and _is_due(epoch, spec.run.diagnose_every, also=1):
            figures |= learner.diagnose(step)
        step = None  # embeddings and their autograd graph: not beside the watch, nor the next epoch's
        if recorder.leads and _is_due(epoch, spec.evaluation.watch_every, also=epochs):
            figures |= watch(learner.encoder, graph, run.path / ".watch", spec, progress=recorder.watching(epoch))

        asked = recorder.emit("epoch", epoch=epoch, metrics=figures)
        early = team.any(asked or recorder.asked_to("finish") or learner.is_done)
        finished = early or epoch == epochs
        cancelled = team.any(recorder.asked_to("cancel"))
        if finished or cancelled or epoch % spec.run.checkpoint_every == 0:
            recorder.checkpoint(learner, progress)
        if cancelled and not finished:
            recorder.cancel(epoch, f"after epoch {epoch}")

    recorder.stages.end("train")
    if recorder.leads:
        encoder = learner.finished_encoder()
        del learner  # kept tiles, moments and a bank would lie beside the export for nothing
        finish(recorder, encoder, graph, early=early, started=started)


def train_in_team(spec: TrainSpec, run_dir: Path, team: Team) -> None:
    """One worker's part in a run that `fit` has opened and planned; a restarted worker goes on from the checkpoint."""
    run = RunDirectory.attach(run_dir, spec)
    document = run.plan
    assert document is not None
    with log_to(run.path / "log.txt") if team.rank == 0 else nullcontext(), translated_failures():
        graph = load(spec.data)
        plan = restore_plan(spec, document, shape_of(graph))
        with products.using(plan.products):
            train(run, plan, graph, _device(spec), team, lambda _: False, lambda: stop_requested(run_dir))


def _choose_products(spec: TrainSpec, nodes: int) -> str:
    """Who computes the products of a planned spec: as asked, or by trial on tiles of the run's size."""
    if spec.run.precision == "bfloat16":
        return "bfloat16"
    if spec.run.dtype != "float32" or _device(spec).type != "cpu":
        return "blas"
    side = min(spec.sampling.tile or DEFAULT_TILE, spec.sampling.batch_size or nodes, nodes)
    return products.quickest(side)


def _is_due(epoch: int, every: int, *, also: int) -> bool:
    """Whether something is done after this epoch that is done `every` so many (0: never) and after epoch `also`."""
    return every > 0 and (epoch % every == 0 or epoch == also)


def _device(spec: TrainSpec) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if spec.run.device == "cuda" and not has_cuda:
        raise InvalidInput("run.device is cuda, and torch sees no GPU here. Set run.device to auto or cpu.")
    return torch.device("cuda" if has_cuda and spec.run.device != "cpu" else "cpu")
