"""A job of the service on the screen: the same bar, lines and table as for a run of one's own, fed by its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from service.cli.connect import say
from service.cli.progress import PlainLines, ProgressBar
from service.cli.sweep_table import Standing, watching
from trainer.files.documents import value_at
from tuner.config import parse_sweep

if TYPE_CHECKING:
    from service.client import Event, Job

_JOURNAL = {"start", "resume", "trial", "running", "retry", "report", "done", "cancelled", "end"}  # tuner.journal


@contextmanager
def displaying(job: Job, *, as_json: bool) -> Iterator[Callable[[Event], None]]:
    """What to call with each event. Bars, tables and lines are on standard error, JSON is on standard output."""
    from service.client import Sweep

    if as_json:
        yield _print_json
    elif isinstance(job, Sweep):
        with watching(Standing(parse_sweep(dict(job.document["spec"]))), as_json=False) as on_journal:
            yield _SweepDisplay(on_journal)
    else:
        bar = ProgressBar.if_terminal() or PlainLines()
        try:
            yield _TrainDisplay(job, bar)
        finally:
            bar.stop()


def remark(event: Event) -> str | None:
    """What is out of the ordinary about a job, as a sentence; None for what is not."""
    data = event.data
    if event.type == "rewind":
        return f"continues from epoch {data['epoch']}; later epochs are trained again"
    if event.type != "state":
        return None
    match data["state"]:
        case "queued" if data["attempt"]:
            reason = data.get("reason") or "no reason given"
            return f"attempt {data['attempt']} ended early ({reason}); it is tried again"
        case "running" if data["attempt"] > 1:
            return f"attempt {data['attempt']} starts"
        case "cancelling":
            return "is being cancelled; it writes a checkpoint first"
    return None


def _print_json(event: Event) -> None:
    typer.echo(json.dumps({"seq": event.seq, "type": event.type, **event.data}))


class _TrainDisplay:
    """Turns the events of one training job into calls of a bar, or of lines."""

    def __init__(self, job: Job, bar: ProgressBar | PlainLines):
        self._name, self._bar = job.dataset, bar
        self._epochs = value_at({"spec": job.document.get("spec")}, "spec.optimiser.epochs")
        epoch = job.progress.get("epoch") or 0
        phase = job.progress.get("phase")
        bar.begin(phase if epoch and phase else f"{job.dataset} {job.state}", self._epochs, epoch)

    def __call__(self, event: Event) -> None:
        data, bar = event.data, self._bar
        said = remark(event)
        if said is not None:
            say(said)
        match event.type:
            case "state" if data["state"] in ("queued", "running", "cancelling"):
                bar.on_phase(f"{self._name} {data['state']}")
            case "start" | "resume":
                bar.begin(self._title(data), self._epochs, data["epoch"])
            case "rewind":
                bar.begin(self._name, self._epochs, data["epoch"])
            case "step":
                bar.on_step(data["epoch"], data["step"], data["steps"], data["loss"])
            case "epoch":
                bar.on_epoch(data)
            case "phase":
                bar.on_phase(data["name"])
            case "exported":
                bar.on_export(data["done"], data["total"])

    def _title(self, data: Any) -> str:
        if isinstance(self._bar, ProgressBar):
            return self._name
        return f"{self._name}: {data['nodes']} nodes, {data['edges']} edges, spec {data['spec_hash'][:12]}"


class _SweepDisplay:
    """Hands on what the sweep's journal tells, and says the rest."""

    def __init__(self, on_journal: Callable[[dict[str, Any]], None]):
        self._on_journal = on_journal

    def __call__(self, event: Event) -> None:
        said = remark(event)
        if said is not None:
            say(said)
        if event.type in _JOURNAL:
            self._on_journal({"type": event.type, **event.data})
