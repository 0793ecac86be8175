"""What a run says and keeps while it trains: events, checkpoints, and the answer to a request to stop.

In a team every worker calls it, and rank 0 alone does something: it writes the run directory for all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from trainer.data.graph import Graph
from trainer.distributed.team import Team
from trainer.errors import Cancelled
from trainer.planning.plan import Plan
from trainer.process.version import version
from trainer.run.checkpoint import Progress, Stateful, save_checkpoint
from trainer.run.directory import RunDirectory
from trainer.run.stop_file import Stop
from trainer.training.stages import Stages

log = logging.getLogger("trainer")
SECONDS_BETWEEN_EVENTS = 2.0  # of the kinds that tell how far something is


class Recorder:
    """Rank 0's hand in the run directory.

    Args:
        on_event: gets every event; returns whether the run should end early, as finished.
        stop: whether the run should end: `finish` after this epoch, `cancel` after this step.
        stages: the run's stopwatch; none: one of its own.
    """

    def __init__(
        self, run: RunDirectory, plan: Plan, team: Team,
        on_event: Callable[[dict[str, Any]], bool], stop: Callable[[], Stop | None], stages: Stages | None = None,
    ):  # fmt: skip
        self.run, self.plan, self.leads = run, plan, team.rank == 0
        self.stages = stages or Stages(run.record if self.leads else None)
        self._on_event, self._stop = on_event, stop
        self._last_event = self._last_checkpoint = time.monotonic()

    def start(self, progress: Progress, graph: Graph, device: torch.device) -> None:
        """Say what is trained and from where on; epochs after the checkpoint are taken back."""
        spec = self.plan.spec
        if self.leads:
            self.run.rewind(progress.epoch)
        self.emit(
            "resume" if progress.epoch or progress.steps else "start", epoch=progress.epoch, spec_hash=self.plan.name,
            version=version(), device=str(device), nodes=graph.num_nodes, edges=graph.num_edges,
            tags={
                "dataset": spec.data.name, "method": spec.method.name, **spec.method.tags(),
                "preset": spec.preset or "", "protocol": spec.evaluation.protocol, "seed": str(spec.run.seed),
                "version": version(), "device": str(device), "negatives": spec.sampling.negatives or "",
                "torch": torch.__version__,
            },
        )  # fmt: skip
        log.info(
            "%s: %d nodes, %d edges, epoch %d of %d, spec %s", graph.name, graph.num_nodes, graph.num_edges,
            progress.epoch, spec.optimiser.epochs, self.plan.name[:12],
        )  # fmt: skip
        if spec.sampling.batch_size is not None:
            from trainer.sampling.backends import available  # PyG takes seconds to import: only where it is used

            log.info("neighbour sampler: %s (installed: %s)", spec.sampling.backend, ", ".join(available()))

    def emit(self, kind: str, **fields: object) -> bool:
        """Record an event and pass it on; whether a callback asks to end the run."""
        self._last_event = time.monotonic()
        return self.leads and self._on_event(self.run.record(kind, **fields))

    def emit_sometimes(self, kind: str, **fields: object) -> None:
        """The same, unless the last event is hardly two seconds old."""
        if time.monotonic() - self._last_event >= SECONDS_BETWEEN_EVENTS:
            self.emit(kind, **fields)

    def watching(self, epoch: int) -> Callable[[int, int], None]:
        """For a look at the embedding, to say how far it is."""
        return lambda done, total: self.emit_sometimes("watching", epoch=epoch, done=done, total=total)

    def asked_to(self, how: Stop) -> bool:
        """Whether somebody wants the run to end so; only rank 0 knows."""
        return self.leads and self._stop() == how

    def checkpoint_is_overdue(self) -> bool:
        """Whether the last one is more than `run.checkpoint_minutes` old, by the clock of rank 0."""
        return self.leads and time.monotonic() - self._last_checkpoint > 60 * self.plan.spec.run.checkpoint_minutes

    def checkpoint(self, method: Stateful, progress: Progress) -> None:
        """Write one, and drop those beyond `run.keep_checkpoints`."""
        if self.leads:
            path = save_checkpoint(
                self.run.path / "checkpoints", method, progress, spec_hash=self.plan.name,
                keep=self.plan.spec.run.keep_checkpoints,
            )  # fmt: skip
            self.emit("checkpoint", epoch=progress.epoch, path=str(path.relative_to(self.run.path)))
        self._last_checkpoint = time.monotonic()

    def cancel(self, epoch: int, when: str) -> NoReturn:
        """End the run as cancelled."""
        self.emit("cancelled", epoch=epoch)
        raise Cancelled(f"stopped on request {when}; `--resume` goes on from there")
