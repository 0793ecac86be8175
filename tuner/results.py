"""What a sweep found, as rows, files and names for people: results.csv, results.json and best.json.

Everything is read from the trials of the journal, so it can be written again at any time, also while a sweep runs.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import TrainSpec
from trainer.files.atomic import write_atomically, write_json
from trainer.files.documents import value_at
from tuner.config import SweepSpec, best_spec, split_seed, sweep_hash
from tuner.journal import Report, State, TrialRecord
from tuner.space import Value

JUDGED_BY = {
    "val_accuracy": "accuracy on validation nodes",
    "link_auc": "AUC on held-out edges",
    "i_nml": "estimate of I_NML",
}
_ORDER: tuple[State, ...] = ("finished", "ended", "stopped", "running", "waiting", "failed")
_LABELS = {
    "method.inner_steps": "T_M", "method.temperature": "τ", "optimiser.epochs": "T_E", "optimiser.lr": "lr",
    "optimiser.weight_decay": "weight decay",
}  # fmt: skip


def best_trial(trials: Mapping[int, TrialRecord]) -> TrialRecord | None:
    """The finished trial with the highest value, the earliest of equals; None if there is nothing to choose from.

    Only if none finished, the best of those that the end of the sweep's time cut off after a report. Trials that
    failed, or that the scheduler found worse than others, are never chosen.
    """
    inorder = [trials[number] for number in sorted(trials)]
    finished = [(trial.value, trial) for trial in inorder if trial.state == "finished" and trial.value is not None]
    ended = [
        (value, trial) for trial in inorder if trial.state == "ended" and (value := _ended_value(trial)) is not None
    ]
    return max(finished or ended, key=lambda pair: pair[0], default=(None, None))[1]  # max keeps the first of equals


def best_changes(trial: TrialRecord) -> dict[str, Value]:
    """What the chosen trial sets in the base; if it was cut off, for as many epochs as it had trained."""
    reached = furthest(trial)
    if trial.state != "ended" or reached is None:
        return dict(trial.changes)
    return {**trial.changes, "optimiser.epochs": reached.epoch}


def chosen_spec(spec: SweepSpec, trials: Mapping[int, TrialRecord]) -> TrainSpec | None:
    """What `nml train` should train: the best trial's settings on all edges; None if there is no best trial."""
    best = best_trial(trials)
    return None if best is None else best_spec(spec, best_changes(best))


def ranked(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Trials by what can be said for them: finished ones first, best first, then those cut short, failed ones last."""

    def place(trial: TrialRecord) -> tuple[int, float, int]:
        value = value_of(trial)
        return _ORDER.index(trial.state), float("inf") if value is None else -value, trial.number

    return sorted(trials, key=place)


def rows(
    spec: SweepSpec, trials: Mapping[int, TrialRecord], numbers: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """One flat row per trial (of `numbers`, else all by number), with the same keys; None where it has no such thing.

    Columns: number, state, origin, value, each searched path, epoch, seconds, the value of each run as
    value_seed_<seed>, the figures of the last report (their mean over runs, as the value is), error.
    """
    paths, seeds = list(spec.dimensions()), [spec.base.run.seed + run for run in range(spec.seeds)]
    base = spec.base.model_dump(mode="json")
    last = {number: _last_figures(trial) for number, trial in trials.items()}
    own = {"number", "state", "origin", "value", *paths, "epoch", "seconds", "error"}
    names = {key: f"figures.{key}" if key in own else key for figures in last.values() for key in figures}
    found = []
    for number in sorted(trials) if numbers is None else numbers:
        trial = trials[number]
        row: dict[str, Any] = {
            "number": number, "state": trial.state, "origin": trial.origin, "value": value_of(trial),
        }  # fmt: skip
        row |= {path: trial.changes.get(path, value_at(base, path)) for path in paths}
        row |= {"epoch": trial.epoch, "seconds": trial.seconds}
        row |= {f"value_seed_{seed}": _item(trial.values, run) for run, seed in enumerate(seeds)}
        row |= {name: last[number].get(key) for key, name in names.items()}
        found.append(row | {"error": trial.error})
    return found


def summary(spec: SweepSpec, trials: Mapping[int, TrialRecord]) -> dict[str, Any]:
    """The document of results.json: what was sought, under which protocol, what was found."""
    best, states = best_trial(trials), Counter(trial.state for trial in trials.values())
    return {
        "objective": spec.objective,
        "sweep": sweep_hash(spec),
        "protocol": protocol_line(spec),
        "split_seed": split_seed(spec),
        "seeds": [spec.base.run.seed + run for run in range(spec.seeds)],
        "held_out_edges": spec.held_out,
        "states": {state: states[state] for state in _ORDER if states[state]},
        "best": None if best is None else best.number,
        "value": None if best is None else value_of(best),
        "trials": rows(spec, trials),
    }


def value_of(trial: TrialRecord) -> float | None:
    """A trial's value, or what it last reported; None for one that failed, whatever it reported before."""
    if trial.state == "ended":
        return _ended_value(trial)
    return None if trial.state == "failed" else trial.last_value


def protocol_line(spec: SweepSpec) -> str:
    """How the values came about, in a sentence that every table and picture of them carries."""
    seeds = ", ".join(str(spec.base.run.seed + run) for run in range(min(spec.seeds, 5)))
    runs = f"seed {seeds}" if spec.seeds == 1 else f"mean over seeds {seeds}{', …' if spec.seeds > 5 else ''}"
    held = f"{100 * spec.held_out:g} % of edges held out" if spec.held_out else "no edges held out"
    if spec.held_out:
        held += f" (seed {spec.base.data.held_out_seed})"
    return (
        f"{spec.objective}: {JUDGED_BY[spec.objective]}; {spec.base.evaluation.protocol} protocol, "
        f"split seed {split_seed(spec)}; {runs}; {held}."
    )


def write_results(directory: Path, spec: SweepSpec, trials: Mapping[int, TrialRecord]) -> None:
    """Write results.csv, results.json and, if there is a best trial, best.json; each whole or not at all."""
    found = summary(spec, trials)
    text = as_csv(found["trials"], columns=list(found["trials"][0]) if found["trials"] else ["number", "state"])
    write_atomically(directory / "results.csv", lambda path: _write(path, text))
    write_json(directory / "results.json", found)
    chosen = chosen_spec(spec, trials)
    if chosen is not None:
        write_json(directory / "best.json", chosen.model_dump(mode="json"))


def as_csv(table: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """RFC 4180: text with commas, quotes or line breaks is quoted; lists and truth values are JSON."""
    columns = columns if columns is not None else list(table[0]) if table else []
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in table)
    return text.getvalue()


def labels(spec: SweepSpec) -> dict[str, str]:
    """What each searched field is called in tables and pictures: α, T_M, τ where it has such a name."""
    scale = value_at(spec.base.model_dump(mode="json"), "method.reg.scale")
    known = _LABELS | {"method.reg.coefficient": "α" if scale == "n_minus_1" else "a"}
    return {path: known.get(path, name) for path, name in short_names(list(spec.dimensions())).items()}


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted path, with as many of those before it as tell it from the others."""
    names = {}
    for path in paths:
        parts = path.split(".")
        others = [other.split(".") for other in paths if other != path]
        longest = max(map(len, [parts, *others]))
        length = next(size for size in range(1, longest + 1) if parts[-size:] not in [o[-size:] for o in others])
        names[path] = ".".join(parts[-length:])
    return names


def shown(value: Value) -> str:
    """A setting or figure in a table or on an axis; short, so small numbers are 5e-4 and not 0.0005."""
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def furthest(trial: TrialRecord) -> Report | None:
    """The last report of the run that trained longest."""
    return max(trial.reports, key=lambda report: (report.epoch, -report.run), default=None)


def _ended_value(trial: TrialRecord) -> float | None:
    report = furthest(trial)
    return trial.value if report is None else report.value


def _last_figures(trial: TrialRecord) -> dict[str, float]:
    """Mean over runs of the figures in each run's last report."""
    last = list({report.run: report.figures for report in trial.reports}.values())
    keys = list(dict.fromkeys(key for figures in last for key in figures))
    values = {key: [figures[key] for figures in last if figures.get(key) is not None] for key in keys}
    return {key: sum(numbers) / len(numbers) for key, numbers in values.items() if numbers}


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list | tuple | dict) else value


def _item(values: Sequence[float], at: int) -> float | None:
    return values[at] if at < len(values) else None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
