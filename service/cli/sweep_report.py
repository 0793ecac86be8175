"""What a sweep found, for people: its best trials, the chosen settings beside the first ones, and what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.table import Table

from service.cli.sweep_table import first_line, trial_table
from trainer.files.documents import value_at
from tuner.config import SweepSpec
from tuner.journal import TrialRecord
from tuner.results import JUDGED_BY, best_changes, best_trial, labels, protocol_line, ranked, shown, value_of

MEANING = (
    "{value:.4f} is a validation figure ({judged}) that chose these settings itself, so it flatters them. "
    "Test accuracy was not looked at; training with them reports it once."
)


def print_outcome(console: Console, spec: SweepSpec, trials: Mapping[int, TrialRecord], *, top: int) -> None:
    """The best trials, the best settings, and how far to trust their value."""
    best = best_trial(trials)
    states = Counter(trial.state for trial in trials.values())
    counted = ", ".join(f"{number} {state}" for state, number in states.most_common()) or "no trials yet"
    first = f" The first {top} by merit:" if len(trials) > top else ""
    console.print(f"{spec.base.data.name}: {counted}.{first}", markup=False)
    if trials:
        console.print(trial_table(spec, ranked(trials.values())[:top], best, console.width))
    console.print(protocol_line(spec), markup=False)
    print_failures(console, trials)
    if best is None:
        console.print("No trial came far enough to be chosen.")
        return
    console.print()
    console.print(settings_table(spec, trials, best))
    if best.state == "ended":
        console.print(
            "No trial trained to its end before the time was over: the settings are for the epochs this one reached."
        )
    console.print(MEANING.format(value=value_of(best), judged=JUDGED_BY[spec.objective]), markup=False)


def print_failures(console: Console, trials: Mapping[int, TrialRecord], most: int = 3) -> None:
    """Why trials failed, each reason once."""
    reasons: dict[str, list[int]] = {}
    for trial in trials.values():
        if trial.state == "failed":
            reasons.setdefault(first_line(trial.error), []).append(trial.number)
    for reason, numbers in list(reasons.items())[:most]:
        which = f"trial {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} trials, such as {numbers[0]},"
        console.print(f"{which} failed: {reason}", markup=False)
    if len(reasons) > most:
        console.print(f"… and for {len(reasons) - most} other reasons, see results.csv", markup=False)


def print_next_steps(console: Console, directory: Path, spec: SweepSpec) -> None:
    """Where everything is and what to do with it."""
    console.print(
        f"Everything is in {directory}; figures/parallel.html opens in a browser. Train the best with", markup=False
    )
    console.print(f"  nml train {quote(str(directory / 'best.json'))}", markup=False)
    if spec.base.run.track:
        from trainer.tracking import ui_command

        console.print(f"MLflow experiment {spec.base.run.experiment}. Look: {ui_command()}", markup=False)


def settings_table(spec: SweepSpec, trials: Mapping[int, TrialRecord], best: TrialRecord) -> Table:
    """The best trial's settings beside those of the first start, which is where the search began."""
    first = min((trial for trial in trials.values() if trial.origin == "start"), key=lambda t: t.number, default=None)
    columns = [(f"best, trial {best.number}", best, best_changes(best))]
    if first is not None and first is not best:
        columns.append((f"first start, trial {first.number}", first, first.changes))
    base, names = spec.base.model_dump(mode="json"), labels(spec)
    if best.state == "ended":
        names = names | {"optimiser.epochs": names.get("optimiser.epochs", "T_E")}
    table = Table("field", "", *(name for name, _, _ in columns), box=None, pad_edge=False)
    for path, label in names.items():
        values = [shown(changes.get(path, value_at(base, path))) for _, _, changes in columns]
        table.add_row(path, "" if path.endswith(label) else label, *values)
    table.add_row(spec.objective, "", *(_result(trial) for _, trial, _ in columns), style="bold")
    return table


def _result(trial: TrialRecord) -> str:
    value = value_of(trial)
    if value is None:
        return trial.state
    return f"{value:.4f}" if trial.state == "finished" else f"{value:.4f} ({trial.state} at epoch {trial.epoch})"
