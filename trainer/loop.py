"""Train a spec in a run directory: one loop for every method, made to be interrupted.

- Same seed, same CPU, same thread count: same numbers to the bit, also after kill -9 and resume.
- SIGTERM or SIGINT finishes the epoch, checkpoints and ends as `Cancelled`; resume goes on from there.
- Memory: the graph and features, activations of two views (about 8 N × hidden floats), Adam's moments, tiles of
  `sampling.tile`² floats, and up to `sampling.keep_mb` of kept similarities. No N×N object.
"""

from __future__ import annotations

import errno
import logging
import math
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from trainer import version
from trainer.callbacks import Callback, Result, RunInfo, Signal
from trainer.config import TrainSpec, spec_hash
from trainer.datasets import load
from trainer.errors import Cancelled, Infrastructure, InvalidInput, NonFinite, OutOfMemory
from trainer.evaluate import evaluate
from trainer.graph import Graph
from trainer.methods import build_method
from trainer.methods.interface import Method
from trainer.nn.inputs import prepare
from trainer.quality.figures import draw_all
from trainer.run.atomic import write_json
from trainer.run.checkpoint import load_newest, save_checkpoint
from trainer.run.directory import RunDirectory
from trainer.run.export import export_embeddings

log = logging.getLogger("trainer")


def fit(
    spec: TrainSpec,
    run_dir: str | Path,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    graph: Graph | None = None,
) -> Result:
    """Train `spec`, leave everything in `run_dir`, and return its metrics and paths.

    Args:
        resume: go on with a run that is in `run_dir`; without one, start it. A finished run is finished again from its
            last checkpoint, which changes nothing.
        graph: use this graph instead of loading `spec.data`; the caller vouches that they are the same.

    Raises:
        TrainerError: of the kind that says what to do (trainer.errors).
    """
    run = RunDirectory.open(Path(run_dir), spec, resume=resume)
    try:
        with _log_to(run.path / "log.txt"):
            try:
                with _translated_failures(spec), _StopRequest() as stop:
                    return _train(run, spec, callbacks, graph, stop)
            except BaseException as error:
                log.info("ended by %s: %s", type(error).__name__, error)
                for callback in callbacks:
                    callback.on_failure(error)
                raise
    finally:
        run.close()


def _train(
    run: RunDirectory, spec: TrainSpec, callbacks: Sequence[Callback], graph: Graph | None, stop: _StopRequest
) -> Result:
    name, started = spec_hash(spec), time.perf_counter()
    device = _device(spec)
    if spec.run.threads:
        torch.set_num_threads(spec.run.threads)
    graph = graph or load(spec.data)
    for note in graph.notes:
        log.info("%s: %s", graph.name, note)
    inputs = prepare(graph, device, getattr(torch, spec.run.dtype))
    method = build_method(spec, inputs)
    before = _vectors(method) if spec.evaluation.figures else None  # from the seed alone, so a resumed run has it too

    done = load_newest(run.path / "checkpoints", method, spec_hash=name)
    run.rewind(done)
    info = RunInfo(run.path, spec, name, graph.num_nodes, graph.num_edges, done + 1, _tags(spec, device))
    run.record("start" if done == 0 else "resume", epoch=done, spec_hash=name, version=version(), device=str(device))
    log.info("%s: %d nodes, %d edges, epoch %d of %d, spec %s", graph.name, graph.num_nodes, graph.num_edges, done,
             spec.optimiser.epochs, name[:12])  # fmt: skip
    for callback in callbacks:
        callback.on_start(info)

    epoch, early = done, False
    encoder_step = method.optimisers["encoder"]
    while epoch < spec.optimiser.epochs and not early:
        epoch += 1
        tick = time.perf_counter()
        views = method.views(epoch)
        method.inner(views, epoch)
        loss = method.loss(views)
        if not math.isfinite(loss.metrics["loss"]):
            raise NonFinite(
                f"the loss of epoch {epoch} is {loss.metrics['loss']}. "
                "Lower optimiser.lr or raise objective.temperature."
            )
        encoder_step.zero_grad(set_to_none=True)
        loss.total.backward()
        encoder_step.step()
        method.after_step()
        seconds = time.perf_counter() - tick

        metrics = loss.metrics | {"seconds": seconds, "rss_mb": _peak_rss_mb()}
        if spec.run.diagnose_every and (epoch == 1 or epoch % spec.run.diagnose_every == 0):
            metrics |= method.diagnose(views)
        event = run.record("epoch", epoch=epoch, metrics=metrics)
        early = Signal.STOP in [callback.on_epoch(event) for callback in callbacks]
        finished = early or epoch == spec.optimiser.epochs
        if finished or stop.requested or epoch % spec.run.checkpoint_every == 0:
            path = save_checkpoint(
                run.path / "checkpoints", method, epoch=epoch, spec_hash=name, keep=spec.run.keep_checkpoints
            )
            for callback in callbacks:
                callback.on_checkpoint(epoch, path)
        if stop.requested and not finished:
            run.record("cancelled", epoch=epoch)
            raise Cancelled(f"stopped on request after epoch {epoch}; `--resume` goes on from there")

    return _finish(run, spec, method, graph, before, callbacks, epoch, early, started)


def _finish(
    run: RunDirectory, spec: TrainSpec, method: Method, graph: Graph, before: np.ndarray | None,
    callbacks: Sequence[Callback], epoch: int, early: bool, started: float,
) -> Result:  # fmt: skip
    """Export, judge, draw, and write metrics.json last: its presence means the run is complete."""

    def phase(name: str) -> None:
        run.record("phase", name=name, epoch=epoch)
        for callback in callbacks:
            callback.on_phase(name)

    phase("export")
    vectors = _vectors(method)
    provenance = {"dataset": spec.data.name, "spec_hash": spec_hash(spec), "epoch": epoch, "version": version()}
    embeddings = export_embeddings(
        run.path / "embeddings", vectors, graph, graph_sha256=graph.fingerprint(), **provenance
    )
    phase("evaluate")
    quality = evaluate(vectors, y=graph.y, public_split=graph.split, spec=spec.evaluation, seed=spec.run.seed)
    history = run.history()
    if spec.evaluation.figures:
        phase("figures")
        draw_all(run.path / "figures", history=history, before=before, after=vectors, y=graph.y, classes=graph.classes)
    metrics = {
        **provenance, "preset": spec.preset, "seed": spec.run.seed, "nodes": graph.num_nodes, "edges": graph.num_edges,
        "train": history[-1]["metrics"], "train_seconds": sum(event["metrics"]["seconds"] for event in history),
        "seconds": time.perf_counter() - started, "peak_rss_mb": _peak_rss_mb(), "eval": quality,
    }  # fmt: skip
    write_json(run.path / "metrics.json", metrics)
    run.record("end", epoch=epoch, stopped_early=early)
    result = Result(run.path, metrics, embeddings, epoch, early)
    for callback in callbacks:
        callback.on_end(result)
    return result


def _vectors(method: Method) -> np.ndarray:
    return method.embed().float().cpu().numpy()


def _device(spec: TrainSpec) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if spec.run.device == "cuda" and not has_cuda:
        raise InvalidInput("run.device is cuda, and torch sees no GPU here. Set run.device to auto or cpu.")
    return torch.device("cuda" if has_cuda and spec.run.device != "cpu" else "cpu")


def _tags(spec: TrainSpec, device: torch.device) -> dict[str, str]:
    return {
        "dataset": spec.data.name, "method": spec.method, "metric": spec.metric.kind, "preset": spec.preset or "",
        "protocol": spec.evaluation.protocol, "seed": str(spec.run.seed), "version": version(), "device": str(device),
        "torch": torch.__version__,
    }  # fmt: skip


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class _StopRequest:
    """Turns SIGTERM and SIGINT into a flag the loop reads between epochs; a second signal acts as usual."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _StopRequest:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python refuses handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, self._previous[number])
        log.warning("%s: finishing this epoch, then checkpointing", signal.Signals(number).name)


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


@contextmanager
def _translated_failures(spec: TrainSpec) -> Iterator[None]:
    """Give memory and disk failures the kind that the retry rules know."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(_memory_advice(spec)) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # torch's CPU allocator has no exception of its own
            raise OutOfMemory(_memory_advice(spec)) from error
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Infrastructure(f"the disk is full: {error}. Free space, then go on with --resume.") from error
        raise


def _memory_advice(spec: TrainSpec) -> str:
    return (
        f"memory ran out. Lower sampling.keep_mb (now {spec.sampling.keep_mb}), sampling.tile "
        f"(now {spec.sampling.tile or 1024}) or encoder.hidden (now {spec.encoder.hidden}), then go on with --resume."
    )
