"""How a sweep shows itself while it runs: a table of trials on a terminal, plain lines in a pipe, JSON for machines."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainer.files.documents import value_at
from tuner.config import SweepSpec, sweep_hash
from tuner.journal import Event, TrialRecord, apply
from tuner.results import best_trial, labels, ranked, shown, value_of
from tuner.space import Choice, Grid

STYLES = {"running": "cyan", "finished": "green", "failed": "red", "stopped": "dim", "ended": "yellow"}
_AROUND = 6  # lines of a terminal that are not trials: head, column names in two, what is left out in two, the cursor


class Standing:
    """A sweep as far as its events tell, and its clock."""

    def __init__(self, spec: SweepSpec, trials: Mapping[int, TrialRecord] | None = None, elapsed: float = 0.0):
        self.spec, self.trials = spec, dict(trials or {})
        self._elapsed, self._since = elapsed, time.monotonic()
        self._lock = threading.Lock()  # the table is drawn by a thread of its own

    def take(self, event: Event) -> None:
        """Bring everything up to date with an event that was just written."""
        with self._lock:
            apply(self.trials, event)
            self._elapsed, self._since = event.get("elapsed", self._elapsed), time.monotonic()

    def seen(self) -> tuple[list[TrialRecord], TrialRecord | None, float]:
        """All trials, running ones first and then by merit; the best; seconds the sweep has run."""
        with self._lock:
            order = sorted(ranked(self.trials.values()), key=lambda trial: trial.state != "running")
            return order, best_trial(self.trials), self._elapsed + time.monotonic() - self._since

    @property
    def total(self) -> int:
        """Trials there will be, as far as that is known."""
        sizes = [len(d.values) for d in self.spec.dimensions().values() if isinstance(d, Choice | Grid)]
        most = min(self.spec.trials, math.prod(sizes)) if self.spec.algorithm == "grid" else self.spec.trials
        return max(most, len(self.trials))


@contextmanager
def watching(standing: Standing, *, as_json: bool, console: Console | None = None) -> Iterator[Callable[[Event], None]]:
    """What to call with each event. The table and the lines are on standard error, JSON is on standard output."""
    console = console or Console(stderr=True, highlight=False)
    if as_json:
        yield _printing_json(standing)
    elif console.is_terminal:
        with Live(
            get_renderable=lambda: render(standing, console), console=console, refresh_per_second=2, transient=True
        ) as live:
            yield _showing(standing, live)
    else:
        yield _printing_lines(standing, console)


def render(standing: Standing, console: Console) -> Group:
    """Head line, and as many trials as the terminal is high."""
    trials, best, elapsed = standing.seen()
    room = max(1, console.size.height - _AROUND)
    left_out = trials[room:]
    parts: list[Text | Table] = [Text(head_line(standing, trials, best, elapsed), style="bold", no_wrap=True)]
    if trials:
        parts.append(trial_table(standing.spec, trials[:room], best, console.width))
    if left_out:
        states = Counter(trial.state for trial in left_out)
        parts.append(Text(f"… and {len(left_out)} more ({', '.join(f'{n} {state}' for state, n in states.items())})"))
    return Group(*parts)


def trial_table(spec: SweepSpec, trials: list[TrialRecord], best: TrialRecord | None, width: int) -> Table:
    """A row per trial, in the order given; the best is marked. Settings for which `width` has no room are named below.

    State, epoch and objective are always whole: who watches wants to see them move.
    """
    names, base = labels(spec), spec.base.model_dump(mode="json")
    before: dict[str, list[str]] = {
        "trial": [str(trial.number) for trial in trials],
        "state": [trial.state for trial in trials],
    }
    settings = {
        name: [shown(trial.changes.get(path, value_at(base, path))) for trial in trials] for path, name in names.items()
    }
    after: dict[str, list[str]] = {
        "epoch": [_epoch(spec, trial) for trial in trials],
        spec.objective: [_value(trial, best) for trial in trials],
        "seconds": [f"{trial.seconds:.0f}" for trial in trials],
    }
    room = width - sum(_width(*column) for column in (before | after).items())
    fitting: dict[str, list[str]] = {}
    for name, cells in settings.items():
        room -= _width(name, cells)
        if room >= 0:
            fitting[name] = cells
    left_out = [name for name in settings if name not in fitting]
    table = Table(box=None, pad_edge=False, padding=(0, 1), caption_justify="left")
    table.caption = f"no room for {', '.join(left_out)}" if left_out else None
    columns = before | fitting | after
    for name in columns:
        table.add_column(
            name, justify="left" if name == "state" else "right", min_width=_width(name, columns[name]) - 2
        )
    for trial, row in zip(trials, zip(*columns.values(), strict=True), strict=True):
        is_best = best is not None and trial.number == best.number
        number, state, *rest = (Text(cell, no_wrap=True) for cell in row)
        state.stylize(STYLES.get(trial.state, ""))
        table.add_row(number, state, *rest, style="bold" if is_best else "")
    return table


def _width(name: str, cells: list[str]) -> int:
    """Characters that a column takes with its padding; its name may fold between words."""
    return max(map(len, [*name.split(), *cells])) + 2


def _value(trial: TrialRecord, best: TrialRecord | None) -> str:
    value = value_of(trial)
    mark = " ★" if best is not None and trial.number == best.number else ""
    return "–" if value is None else f"{value:.4f}{mark}"


def head_line(standing: Standing, trials: list[TrialRecord], best: TrialRecord | None, elapsed: float) -> str:
    """Objective, best so far, how many are done, time gone and time to go."""
    value = None if best is None else value_of(best)
    done, running = sum(trial.is_final for trial in trials), sum(trial.state == "running" for trial in trials)
    said = "none yet" if best is None or value is None else f"{value:.4f} (trial {best.number})"
    left = time_left(standing, done, elapsed)
    if not trials:
        return f"{standing.spec.objective}: loading the graph and starting Ray  ·  elapsed {duration(elapsed)}"
    parts = [
        f"{standing.spec.objective}: best {said}", f"{done}/{standing.total} done, {running} running",
        f"elapsed {duration(elapsed)}", *([] if left is None else [f"about {duration(left)} left"]),
    ]  # fmt: skip
    return "  ·  ".join(parts)


def time_left(standing: Standing, done: int, elapsed: float) -> float | None:
    """Seconds to go: the mean time per trial so far for those to come, never more than the budget; None: too early."""
    budget = standing.spec.budget_minutes
    guesses = [] if budget is None else [max(0.0, 60 * budget - elapsed)]
    if done >= 2:
        guesses.append(elapsed / done * (standing.total - done))
    return min(guesses, default=None)


def duration(seconds: float) -> str:
    """3:05 for minutes, 1:03:05 for hours."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def line_of(event: Event, standing: Standing) -> str | None:
    """An event as a sentence, after it was taken in; None for those that a log does without."""
    spec, number = standing.spec, event.get("number")
    match event["type"]:
        case "start" | "resume":
            verb = "goes on" if event["type"] == "resume" else "starts"
            about = f"{spec.base.data.name}, {standing.total} trials by {spec.objective}"
            return f"sweep {sweep_hash(spec)[:12]} {verb}: {about}"
        case "running":
            changes = standing.trials[event["number"]].changes
            settings = ", ".join(
                f"{name} {shown(changes[path])}" for path, name in labels(spec).items() if path in changes
            )
            return f"trial {number} runs: {settings}"
        case "retry":
            return f"trial {number} is tried again: {first_line(event['error'])}"
        case "done" if event["state"] == "failed":
            return f"trial {number} failed: {first_line(event['error'])}"
        case "done":
            best = best_trial(standing.trials)
            mark = ", best so far" if best is not None and best.number == number else ""
            value = "no value" if event["value"] is None else f"{spec.objective} {event['value']:.4f}"
            spent = f"epoch {event['epoch']}, {event['seconds']:.0f} s"
            return f"trial {number} {event['state']}: {value} after {spent}{mark}"
    return None


def first_line(error: str | None) -> str:
    """The part of an error that fits a log; the journal has all of it."""
    lines = (error or "").strip().splitlines()
    return lines[0] if lines else "no reason given"


def _printing_json(standing: Standing) -> Callable[[Event], None]:
    def show(event: Event) -> None:
        standing.take(event)
        typer.echo(json.dumps(event))

    return show


def _printing_lines(standing: Standing, console: Console) -> Callable[[Event], None]:
    def show(event: Event) -> None:
        standing.take(event)
        line = line_of(event, standing)
        if line is not None:
            console.print(line, markup=False, soft_wrap=True)

    return show


def _showing(standing: Standing, live: Live) -> Callable[[Event], None]:
    def show(event: Event) -> None:
        standing.take(event)
        if event["type"] == "retry" or event.get("state") == "failed":  # the table has no room for reasons
            live.console.print(line_of(event, standing), markup=False, soft_wrap=True)

    return show


def _epoch(spec: SweepSpec, trial: TrialRecord) -> str:
    epochs = trial.changes.get("optimiser.epochs", spec.base.optimiser.epochs)
    run = f" (run {trial.reports[-1].run + 1}/{spec.seeds})" if spec.seeds > 1 and trial.reports else ""
    return f"{trial.epoch}/{epochs}{run}"
