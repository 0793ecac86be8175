"""What can look on while a run trains: progress bars, trackers, sweeps.

A callback never changes what is learned. It may ask the run to stop by returning `Signal.STOP` from `on_epoch`; the
loop then checkpoints and ends the run as finished early.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Self

from trainer.config import TrainSpec
from trainer.errors import InvalidInput


class Signal(Enum):
    """What a callback may ask of the loop after an epoch."""

    STOP = auto()


@dataclass(frozen=True)
class RunInfo:
    """What is known when training starts (or resumes after `first_epoch` - 1 epochs)."""

    directory: Path
    spec: TrainSpec
    spec_hash: str
    num_nodes: int
    num_edges: int
    first_epoch: int  # 1 for a fresh run
    tags: Mapping[str, str]  # dataset, protocol, seed, code version, ...


@dataclass(frozen=True)
class Result:
    """What a finished run leaves: its figures and where its files are."""

    directory: Path
    metrics: Mapping[str, Any]  # as in metrics.json
    embeddings: Path  # vectors.npy
    epochs: int
    stopped_early: bool = False

    @classmethod
    def read(cls, directory: Path) -> Self:
        """From metrics.json; without `run.export`, `embeddings` is where they would be.

        Raises:
            InvalidInput: there is no finished run.
        """
        try:
            metrics = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidInput(f"{directory}: holds no finished run. Finish it with `nml train --resume`.") from None
        return cls(
            directory, metrics, directory / "embeddings" / "vectors.npy", metrics["epoch"], metrics["stopped_early"]
        )


class Callback:
    """Does nothing at every point; override what you need."""

    def on_start(self, run: RunInfo) -> None:
        """Data is loaded and the model built."""

    def on_step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        """One of the epoch's encoder steps is done; only called where an epoch has several."""

    def on_epoch(self, event: Mapping[str, Any]) -> Signal | None:
        """One epoch is done; `event` is its line of events.jsonl, numbers under "metrics"."""
        return None

    def on_watch(self, done: int, total: int) -> None:
        """The embedding is being looked at while training (evaluation.watch_every); told every few seconds."""

    def on_checkpoint(self, epoch: int, path: Path) -> None:
        """A checkpoint is safely on disk."""

    def on_phase(self, name: str) -> None:
        """Training is over and `name` (export, evaluate, figures) begins."""

    def on_export(self, done: int, total: int) -> None:
        """So much of the export is on disk; told every few seconds."""

    def on_end(self, result: Result) -> None:
        """Everything is written."""

    def on_failure(self, error: BaseException) -> None:
        """The run ends without a result; Cancelled means it can be resumed."""
