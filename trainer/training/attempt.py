"""The training itself: epoch after epoch, step after step, from the newest checkpoint on.

In a team every worker runs this with the same steps; rank 0 alone writes the run directory, asks whether to stop, and
exports at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.errors import Cancelled
from trainer.evaluation.watch import watch
from trainer.methods import build_method
from trainer.parallel.stop import Stop
from trainer.parallel.team import Team
from trainer.planning.memory import peak_rss
from trainer.planning.plan import Plan
from trainer.process.version import version
from trainer.run.checkpoint import load_newest, save_checkpoint
from trainer.run.directory import RunDirectory
from trainer.training.finish import finish
from trainer.training.step import EpochFigures, take_step

log = logging.getLogger("trainer")
SECONDS_BETWEEN_STEP_EVENTS = 2.0


class Training:
    """One attempt at a planned run.

    Args:
        relay: gets every event; whether it asks to end the run early, as finished.
        stop: whether the run should end: `finish` after this epoch, `cancel` after this step.
    """

    def __init__(
        self, run: RunDirectory, plan: Plan, graph: Graph, device: torch.device, team: Team,
        relay: Callable[[dict[str, Any]], bool], stop: Callable[[], Stop | None],
    ):  # fmt: skip
        self.run, self.plan, self.graph, self.device, self.team = run, plan, graph, device, team
        self.spec, self.leads = plan.spec, team.rank == 0
        self._relay, self._stop = relay, stop
        self.method = build_method(self.spec, graph, device, team)
        directory = run.path / "checkpoints"
        self.place = load_newest(directory, self.method, spec_hash=plan.name, whole_epochs_of=plan.previous)
        self._saved = time.monotonic()

    def go(self) -> None:
        """Train to the end, then export and judge if the spec asks for it.

        Raises:
            Cancelled: stopped on request, after a checkpoint.
            TrainerError: whatever else ends the run (trainer.errors).
        """
        started, early = time.perf_counter(), False
        self._announce()
        while self.place.epoch < self.spec.optimiser.epochs and not early:
            figures = self._epoch()
            self.place.epoch, self.place.figures = self.place.epoch + 1, EpochFigures()
            epoch = self.place.epoch
            figures |= self._watched(epoch)
            asked = self._emit("epoch", epoch=epoch, metrics=figures)
            early = self.team.any(asked or self._asks("finish"))
            finished = early or epoch == self.spec.optimiser.epochs
            cancelled = self.team.any(self._asks("cancel"))
            if finished or cancelled or epoch % self.spec.run.checkpoint_every == 0:
                self._checkpoint()
            if cancelled and not finished:
                self._cancel()
        if self.leads:
            encoder = self.method.encoder
            del self.method  # kept tiles, moments and a bank would lie beside the export for nothing
            finish(self.run, self.plan, encoder, self.graph, self._emit, self._stop, early=early, started=started)

    def _epoch(self) -> dict[str, float]:
        """The steps that are left of an epoch; returns its figures."""
        epoch, steps, figures = self.place.epoch + 1, self.method.steps, self.place.figures
        started, told, views = time.perf_counter(), time.monotonic(), None
        for views in self.method.views(epoch, start=figures.steps):
            metrics = take_step(self.method, views)
            figures.add(metrics)
            if figures.steps == steps:
                break  # what follows the last step belongs to the epoch's end
            if time.monotonic() - told >= SECONDS_BETWEEN_STEP_EVENTS:
                told = time.monotonic()
                self._emit("step", epoch=epoch, step=figures.steps, steps=steps, loss=metrics["loss"])
            cancelled = self.team.any(self._asks("cancel"))
            overdue = time.monotonic() - self._saved > 60 * self.spec.run.checkpoint_minutes
            if self.team.any(self.leads and (cancelled or overdue)):
                self._checkpoint()
            if cancelled:
                self._cancel()
        found = figures.means() | {"seconds": time.perf_counter() - started, "rss_mb": peak_rss() / 2**20}
        every = self.spec.run.diagnose_every
        if self.leads and every and (epoch == 1 or epoch % every == 0):
            found |= self.method.diagnose(views)
        return found

    def _watched(self, epoch: int) -> dict[str, float]:
        """Figures of the embedding after this epoch, if a look at it is due."""
        every, last = self.spec.evaluation.watch_every, epoch == self.spec.optimiser.epochs
        if not (self.leads and every and (last or epoch % every == 0)):
            return {}
        told = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told >= SECONDS_BETWEEN_STEP_EVENTS:
                told = time.monotonic()
                self._emit("watching", epoch=epoch, done=done, total=total)

        return watch(self.method.encoder, self.graph, self.run.path / ".watch", self.spec, progress=progress)

    def _announce(self) -> None:
        spec, place, graph = self.spec, self.place, self.graph
        if self.leads:
            self.run.rewind(place.epoch)
        self._emit(
            "resume" if place.epoch or place.figures.steps else "start", epoch=place.epoch, spec_hash=self.plan.name,
            version=version(), device=str(self.device), nodes=graph.num_nodes, edges=graph.num_edges,
            tags=_tags(spec, self.device),
        )  # fmt: skip
        log.info(
            "%s: %d nodes, %d edges, epoch %d of %d, spec %s", graph.name, graph.num_nodes, graph.num_edges,
            place.epoch, spec.optimiser.epochs, self.plan.name[:12],
        )  # fmt: skip
        if spec.sampling.batch_size is not None:
            from trainer.sampling.backends import available  # PyG takes seconds to import: only where it is used

            log.info("neighbour sampler: %s (installed: %s)", spec.sampling.backend, ", ".join(available()))

    def _asks(self, how: Stop) -> bool:
        return self.leads and self._stop() == how

    def _emit(self, kind: str, **fields: object) -> bool:
        """Record an event and tell those who look on; whether one of them asks to end the run."""
        return self.leads and self._relay(self.run.record(kind, **fields))

    def _checkpoint(self) -> None:
        if self.leads:
            path = save_checkpoint(
                self.run.path / "checkpoints", self.method, self.place, spec_hash=self.plan.name,
                keep=self.spec.run.keep_checkpoints,
            )  # fmt: skip
            self._emit("checkpoint", epoch=self.place.epoch, path=str(path.relative_to(self.run.path)))
        self._saved = time.monotonic()

    def _cancel(self) -> NoReturn:
        self._emit("cancelled", epoch=self.place.epoch)
        raise Cancelled(f"stopped on request after epoch {self.place.epoch}; `--resume` goes on from there")


def _tags(spec: TrainSpec, device: torch.device) -> dict[str, str]:
    return {
        "dataset": spec.data.name, "method": spec.method, "metric": spec.metric.kind, "preset": spec.preset or "",
        "protocol": spec.evaluation.protocol, "seed": str(spec.run.seed), "version": version(), "device": str(device),
        "negatives": spec.sampling.negatives or "", "torch": torch.__version__,
    }  # fmt: skip
