"""How a run shows itself while it trains: a bar on a terminal, plain lines in a pipe, JSON for machines."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from trainer.callbacks import Callback, Result, RunInfo

LINE_EVERY_SECONDS = 5.0


class ProgressBar(Callback):
    """Epochs, loss and time left on one line."""

    def __init__(self, console: Console):
        columns = (
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("loading", total=None, loss="–")

    @classmethod
    def if_terminal(cls) -> ProgressBar | None:
        """A bar if standard error is a terminal; standard output stays clean for results."""
        console = Console(stderr=True)
        return cls(console) if console.is_terminal else None

    def on_start(self, run: RunInfo) -> None:
        self.begin(run.spec.data.name, run.spec.optimiser.epochs, run.first_epoch - 1)

    def begin(self, name: str, epochs: int | None, done: int) -> None:
        """Show the bar, `done` of `epochs` epochs filled."""
        self._progress.update(self._task, description=name, total=epochs, completed=done)
        self._progress.start()

    def on_step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        self._progress.update(self._task, completed=epoch - 1 + step / steps, loss=f"{loss:.4f}")

    def on_epoch(self, event: Mapping[str, Any]) -> None:
        self._progress.update(self._task, completed=event["epoch"], loss=f"{event['metrics']['loss']:.4f}")

    def on_phase(self, name: str) -> None:
        self._progress.update(self._task, description=name)

    def on_export(self, done: int, total: int) -> None:
        self._progress.update(self._task, description=f"export {100 * done // total} %")

    def on_end(self, result: Result) -> None:
        self.stop()

    def on_failure(self, error: BaseException) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class PlainLines(Callback):
    """A line now and then, for logs."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._epochs = 0
        self._last = 0.0

    def on_start(self, run: RunInfo) -> None:
        about = f"{run.num_nodes} nodes, {run.num_edges} edges, spec {run.spec_hash[:12]}"
        self.begin(f"{run.spec.data.name}: {about}", run.spec.optimiser.epochs, run.first_epoch - 1)

    def begin(self, name: str, epochs: int | None, done: int) -> None:
        """Say what is to come."""
        self._epochs = epochs or 0
        self._console.print(name, markup=False)

    def on_step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        self._now_and_then(f"epoch {epoch}/{self._epochs}  step {step}/{steps}  loss {loss:.4f}")

    def on_epoch(self, event: Mapping[str, Any]) -> None:
        line = f"epoch {event['epoch']}/{self._epochs}  loss {event['metrics']['loss']:.4f}"
        self._now_and_then(line, always=event["epoch"] == self._epochs)

    def on_phase(self, name: str) -> None:
        self._console.print(name)

    def on_export(self, done: int, total: int) -> None:
        self._now_and_then(f"export {100 * done // total} %")

    def stop(self) -> None:
        """There is nothing to clear away."""

    def _now_and_then(self, line: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self._last >= LINE_EVERY_SECONDS:
            self._last = now
            self._console.print(line)


class JsonLines(Callback):
    """Every event, and the result, as one JSON object a line on standard output."""

    def on_start(self, run: RunInfo) -> None:
        self._print(
            {"type": "start", "epoch": run.first_epoch - 1, "run": str(run.directory), "spec_hash": run.spec_hash}
        )

    def on_epoch(self, event: Mapping[str, Any]) -> None:
        self._print(dict(event))

    def on_end(self, result: Result) -> None:
        self._print({"type": "result", "run": str(result.directory), "metrics": dict(result.metrics)})

    @staticmethod
    def _print(document: dict[str, Any]) -> None:
        typer.echo(json.dumps(document))
