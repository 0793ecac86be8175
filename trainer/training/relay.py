"""From the run's events to those who look on: one way, whether the run is in this process or in workers elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.callbacks import Callback, RunInfo, Signal
from trainer.config import TrainSpec


class Relay:
    """Hands each event to the callbacks."""

    def __init__(self, directory: Path, spec: TrainSpec, callbacks: Sequence[Callback]):
        self._directory, self._spec, self._callbacks = directory, spec, callbacks

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Returns whether a callback asks the run to stop."""
        answers: list[Signal | None] = []
        for callback in self._callbacks:
            match event["type"]:
                case "start" | "resume":
                    callback.on_start(self._info(event))
                case "step":
                    callback.on_step(event["epoch"], event["step"], event["steps"], event["loss"])
                case "epoch":
                    answers.append(callback.on_epoch(event))
                case "watching":
                    callback.on_watch(event["done"], event["total"])
                case "checkpoint":
                    callback.on_checkpoint(event["epoch"], self._directory / event["path"])
                case "phase":
                    callback.on_phase(event["name"])
                case "exported":
                    callback.on_export(event["done"], event["total"])
        return Signal.STOP in answers

    def _info(self, event: Mapping[str, Any]) -> RunInfo:
        return RunInfo(
            self._directory, self._spec, event["spec_hash"], event["nodes"], event["edges"], event["epoch"] + 1,
            event["tags"],
        )  # fmt: skip
