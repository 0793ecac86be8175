"""One trial: the trainer's own loop on one setting, with a callback that reports to Ray Tune and may be stopped there.

A trial is its run directories. Started again after a kill, a lost worker or a resumed sweep, `fit` goes on from the
newest checkpoint, and reports on epochs that the driver knows already are answered as before.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.callbacks import Callback, Result, RunInfo
from trainer.errors import Infrastructure, InvalidInput, TrainerError
from trainer.files.documents import read_document
from trainer.process.threads import wait_politely
from tuner.config import SweepSpec, parse_sweep, trial_spec
from tuner.journal import run_directory
from tuner.messages import packed

Send = Callable[[dict[str, str]], None]  # ray.tune.report; does not return if the trial is stopped
log = logging.getLogger("tuner")
BEAT_SECONDS = 10.0  # between signs of life when there is nothing else to say
LOCK_SECONDS = 300.0  # a worker of a killed driver, or of a machine that was cut off, may live on for minutes


def run_trial(config: Mapping[str, Any]) -> None:
    """What Ray Tune calls, in a worker process, with {"sweep", "cwd", "memory", "gpus", "number", "changes"}."""
    wait_politely()
    if not config["gpus"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded: Ray leaves it as it is
    if Path(config["cwd"]).is_dir():
        os.chdir(config["cwd"])  # files that the spec names by relative paths
    from ray import tune

    train(Path(config["sweep"]), config["number"], dict(config["changes"]), config["memory"], tune.report)


def train(sweep: Path, number: int, changes: dict[str, Any], memory: int | None, send: Send) -> None:
    """Train all runs of a trial and send what comes of them.

    Args:
        memory: bytes to plan with; none: this machine's, shared by as many trials as its CPUs allow.

    Raises:
        Infrastructure: disk or memory map failed; the driver may try again. Other failures are sent, not raised.
    """
    from trainer.data.graph import Graph
    from trainer.loop import fit
    from trainer.planning.cpus import usable_cpus
    from trainer.planning.memory import usable_memory
    from tuner.data import shared_graph

    send(packed("running", host=platform.node(), pid=os.getpid()))
    values: list[float] = []
    reporter: Reporter | None = None
    seconds = 0.0
    try:
        if not (sweep / "spec.json").is_file():
            raise InvalidInput(
                f"{sweep}: its worker on {platform.node()} does not see it. Put sweeps where all nodes can reach them."
            )
        spec = parse_sweep(read_document(sweep / "spec.json"))
        memory = memory or usable_memory() // max(1, usable_cpus() // spec.resources.cpus)
        graph = Graph.open(shared_graph(sweep), mmap=True)
        for run in range(spec.seeds):
            asked = trial_spec(spec, changes, run)
            directory = run_directory(sweep, number, asked.run.seed)
            reporter = Reporter(spec, run, send, seconds)
            _wait_until_free(directory, send)
            result = fit(asked, directory, resume=True, callbacks=[reporter], graph=graph, memory_limit=memory)
            seconds = reporter.seconds
            values.append(_objective(result.metrics["train"], spec))
    except (Infrastructure, OSError) as error:  # may succeed elsewhere, or later
        send(packed("failing", error=f"infra: {error}"))
        raise
    except Exception as error:
        log.exception("trial %d", number)
        what = f"{error.kind}: {error}" if isinstance(error, TrainerError) else f"{type(error).__name__}: {error}"
        epoch, seconds = (0, seconds) if reporter is None else (reporter.epoch, reporter.seconds)
        send(packed("final", state="failed", values=values, epoch=epoch, seconds=seconds, error=what))
        return
    assert reporter is not None
    send(packed("final", state="finished", values=values, epoch=reporter.epoch, seconds=seconds, error=None))


class Reporter(Callback):
    """Sends the objective whenever it was looked at, and a sign of life in between."""

    def __init__(self, spec: SweepSpec, run: int, send: Send, seconds_before: float):
        self._spec, self._run, self._send = spec, run, send
        self._before = seconds_before  # training seconds of the trial's earlier runs
        self._own: dict[int, float] = {}  # of this one, by epoch: a resumed run repeats some
        self._sent = time.monotonic()
        self._last = 0  # epoch of the run, of which there is always a look
        self.epoch = 0

    @property
    def seconds(self) -> float:
        """Seconds the trial has trained and looked at the objective, in all its runs so far."""
        return self._before + sum(self._own.values())

    def on_start(self, run: RunInfo) -> None:
        from trainer.run.directory import read_events

        self._last = run.spec.optimiser.epochs
        for event in read_events(run.directory):
            if event["type"] == "epoch" and event["epoch"] < run.first_epoch:
                self._count(event)

    def on_step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        self._beat()

    def on_epoch(self, event: Mapping[str, Any]) -> None:
        self._count(event)
        metrics, epoch = event["metrics"], event["epoch"]
        if epoch % self._spec.every == 0 or epoch == self._last:
            figures = {name: value for name, value in metrics.items() if math.isfinite(value)}
            self._sent = time.monotonic()
            value, seconds = _objective(metrics, self._spec), self.seconds
            self._send(packed("report", run=self._run, epoch=epoch, value=value, figures=figures, seconds=seconds))
        else:
            self._beat()

    def on_watch(self, done: int, total: int) -> None:
        self._beat()

    def on_phase(self, name: str) -> None:
        self._beat()

    def on_end(self, result: Result) -> None:
        self.epoch = result.epochs

    def _count(self, event: Mapping[str, Any]) -> None:
        self.epoch = event["epoch"]
        metrics = event["metrics"]
        self._own[event["epoch"]] = metrics["seconds"] + metrics.get("watch_seconds", 0.0)

    def _beat(self) -> None:
        if time.monotonic() - self._sent >= BEAT_SECONDS:
            self._sent = time.monotonic()
            self._send(packed("beat"))


def _objective(metrics: Mapping[str, float], spec: SweepSpec) -> float:
    value = metrics.get(spec.objective, math.nan)
    if not math.isfinite(value):
        raise InvalidInput(f"the run gave no {spec.objective}, so the trial cannot be ranked")
    return float(value)


def _wait_until_free(directory: Path, send: Send) -> None:
    """Wait for a worker that was left behind, by its driver or behind a cut cable, to let go of the run directory."""
    from trainer.run.directory import is_taken

    deadline = time.monotonic() + LOCK_SECONDS
    while is_taken(directory) and time.monotonic() < deadline:
        send(packed("beat"))
        time.sleep(0.5)
