"""The pictures of a sweep: the objective against each searched field, by trial and by epoch, and all fields at once.

Nothing heavy is imported before something is drawn. PNGs are drawn on `Figure` objects with the Agg canvas: no pyplot,
so nothing global and nothing that needs a display.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.files.atomic import write_atomically
from tuner.axes import Axis, axes_of
from tuner.config import SweepSpec
from tuner.journal import TrialRecord
from tuner.parallel_coordinates import write_parallel
from tuner.results import JUDGED_BY, best_trial, protocol_line, short_names, value_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette as in the pictures of a run; orange is for what was chosen.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "0.55"
_HOLLOW: dict[str, Any] = {"facecolors": "none", "linewidths": 1.2}
_LOOKS: dict[str, tuple[str, dict[str, Any]]] = {  # by state: legend, marks
    "finished": ("finished", {"color": BLUE, "marker": "o", "linewidths": 0}),
    "stopped": ("stopped early, at its last value", {"edgecolors": BLUE, "marker": "o", **_HOLLOW}),
    "ended": ("cut off as time was over", {"edgecolors": BLUE, "marker": "s", **_HOLLOW}),
    "running": ("still running", {"edgecolors": GREY, "marker": "^", **_HOLLOW}),
    "waiting": ("interrupted", {"edgecolors": GREY, "marker": "v", **_HOLLOW}),
}
_SUBSCRIPTS = {"T_M": "T$_M$", "T_E": "T$_E$"}

Trials = Mapping[int, TrialRecord]


def draw_all(directory: Path, spec: SweepSpec, trials: Trials) -> list[Path]:
    """Draw every picture there is data for into `directory`; returns the files written.

    objective-vs-<field>.png for each searched field, history.png, curves.png if some trial reported more than once,
    and parallel.html, which needs no network. If no trial has a value, history.png alone shows which failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    axes = axes_of(spec, trials)
    names = short_names([axis.path for axis in axes])
    figures = {
        f"objective-vs-{names[axis.path].replace('.', '-')}.png": draw_dimension(spec, trials, axis) for axis in axes
    }
    figures |= {"history.png": draw_history(spec, trials), "curves.png": draw_curves(spec, trials)}
    written = [_save(figure, directory / name) for name, figure in figures.items() if figure is not None]
    parallel = write_parallel(directory / "parallel.html", spec, trials, axes)
    return [*written, *([] if parallel is None else [parallel])]


def draw_dimension(spec: SweepSpec, trials: Trials, axis: Axis) -> Figure | None:
    """The objective against one searched field; None if no trial has a value."""
    if not _values(trials):
        return None
    figure, axes = _figure(spec)
    places = dict(axis.places)
    if axis.kind == "names":  # trials with the same word beside each other, always in the same way
        places = {number: place + 0.3 * (number * 0.618 % 1 - 0.5) for number, place in places.items()}
    _scatter(axes, trials, places)
    if axis.is_discrete:
        _mark_means(axes, trials, axis)
    if axis.ticks is not None:
        axes.set_xticks([at for at, _ in axis.ticks], [_plain(text) for _, text in axis.ticks])
        if axis.kind == "names" and sum(len(text) for _, text in axis.ticks) > 60:
            axes.tick_params(axis="x", rotation=30)
    elif axis.is_discrete:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=all(float(at).is_integer() for at in places.values())))
    axes.set_xlim(axis.low, axis.high)
    label = _SUBSCRIPTS.get(axis.label, axis.label)
    scale = ", logarithmic" if axis.kind == "log" else ""
    axes.set_xlabel(f"{axis.path}{scale}" if axis.label == axis.path else f"{label}  ({axis.path}{scale})")
    return _finish(figure, axes, f"Objective against {label}")


def draw_history(spec: SweepSpec, trials: Trials) -> Figure | None:
    """Value of each trial in the order they were made, and the best finished one so far; None without trials."""
    from matplotlib.ticker import MaxNLocator

    if not trials:
        return None
    figure, axes = _figure(spec)
    finished = [(number, trials[number].value) for number in sorted(trials) if trials[number].state == "finished"]
    known = [(number, value) for number, value in finished if value is not None]
    if known:
        numbers, best = [number for number, _ in known], list(accumulate((value for _, value in known), max))
        numbers, best = [*numbers, max(trials)], [*best, best[-1]]
        axes.step(numbers, best, where="post", color=ORANGE, linewidth=1.6, label="best finished so far", zorder=1)
    _scatter(axes, trials, {number: float(number) for number in trials})
    if not _values(trials):
        axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(min(trials) - 0.7, max(trials) + 0.7)
    axes.set_xlabel("trial")
    return _finish(figure, axes, "Value of each trial")


def draw_curves(spec: SweepSpec, trials: Trials) -> Figure | None:
    """The objective by epoch, a line per trial (its first run); None if no trial reported more than once."""
    from matplotlib.ticker import MaxNLocator

    curves = {number: _curve(trial) for number, trial in trials.items()}
    curves = {number: curve for number, curve in curves.items() if curve}
    if not any(len(curve) > 1 for curve in curves.values()):
        return None
    figure, axes = _figure(spec)
    best, said = best_trial(trials), set()
    for number, curve in sorted(curves.items()):
        trial = trials[number]
        is_best, went_through = trial is best, trial.state == "finished"
        label = f"best (trial {number})" if is_best else "trained to its end" if went_through else "ended early"
        look: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "alpha": 0.8, "zorder": 2}
        if is_best or went_through:
            look = {"color": ORANGE, "linewidth": 2.2, "zorder": 4} if is_best else look | {"color": BLUE, "zorder": 3}
        epochs, values = zip(*curve, strict=True)
        axes.plot(
            epochs, values, label=None if label in said else label, marker="." if len(curve) < 20 else None, **look
        )
        said.add(label)
        if trial.state == "stopped":
            axes.plot(*curve[-1], "o", markerfacecolor="white", color=GREY, markersize=5, zorder=5)
        elif trial.state == "failed":
            axes.plot(*curve[-1], "x", color="black", markersize=5, zorder=5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    first = "" if spec.seeds == 1 else f" (seed {spec.base.run.seed})"
    return _finish(figure, axes, f"Objective while training{first}")


def _scatter(axes: Axes, trials: Trials, places: Mapping[int, float]) -> None:
    """Marks by state, with rings around starts, a star for the best, and ticks on the axis for what failed."""
    values, best = _values(trials), best_trial(trials)
    for state, (label, look) in _LOOKS.items():
        chosen = [number for number in values if trials[number].state == state]
        if chosen:
            points = [places[number] for number in chosen], [values[number] for number in chosen]
            axes.scatter(*points, s=30, alpha=0.85, label=label, zorder=3, **look)
    starts = [number for number in values if trials[number].origin == "start"]
    if starts:
        points = [places[number] for number in starts], [values[number] for number in starts]
        axes.scatter(*points, s=110, edgecolors=GREEN, label="start", zorder=2, **_HOLLOW)
    if best is not None:
        axes.scatter(
            [places[best.number]], [values[best.number]], s=190, marker="*", color=ORANGE, edgecolors="white",
            linewidths=0.8, label=f"best (trial {best.number})", zorder=5,
        )  # fmt: skip
    failed = [places[number] for number in trials if trials[number].state == "failed"]
    if failed:
        bottom, on_axis = [0.0] * len(failed), axes.get_xaxis_transform()
        axes.scatter(
            failed, bottom, s=120, marker="|", color="black", linewidths=1.4, transform=on_axis, clip_on=False,
            label="failed", zorder=6,
        )  # fmt: skip


def _mark_means(axes: Axes, trials: Trials, axis: Axis) -> None:
    """A dash at the mean of finished trials that share a value; those that stopped cannot be compared."""
    groups: dict[float, list[float]] = {}
    for number, trial in trials.items():
        if trial.state == "finished" and trial.value is not None:
            groups.setdefault(axis.places[number], []).append(trial.value)
    means = {place: sum(values) / len(values) for place, values in groups.items() if len(values) > 1}
    if means:
        axes.scatter(
            list(means),
            list(means.values()),
            s=320,
            marker="_",
            color="black",
            linewidths=1.4,
            label="mean of finished",
            zorder=4,
        )


def _values(trials: Trials) -> dict[int, float]:
    """What trials that did not fail are worth, by number, in order."""
    found = {number: value_of(trials[number]) for number in sorted(trials)}
    return {number: value for number, value in found.items() if value is not None}


def _curve(trial: TrialRecord) -> Sequence[tuple[int, float]]:
    """Epochs and values of the first run; of an epoch that was reported twice, the later one."""
    return sorted({report.epoch: report.value for report in trial.reports if report.run == 0}.items())


def _figure(spec: SweepSpec) -> tuple[Figure, Axes]:
    """An empty picture that carries its protocol."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(6.6, 4.6), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    axes = figure.subplots()
    protocol = textwrap.fill(f"{spec.base.data.name}; {protocol_line(spec)}", 130)
    axes.set_title(_plain(protocol, 600), fontsize=7, color="0.4")
    axes.set_ylabel(JUDGED_BY[spec.objective].replace("I_NML", "I$_{NML}$"))
    return figure, axes


def _finish(figure: Figure, axes: Axes, title: str) -> Figure:
    """Light grid behind the data, no box, legend below."""
    axes.set_axisbelow(True)
    axes.grid(color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("0.6")
    axes.tick_params(color="0.6", labelsize=9)
    figure.suptitle(title)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8, markerscale=0.7)
    return figure


def _plain(text: str, length: int = 24) -> str:
    """A value as a tick; $ would start a formula."""
    return (text if len(text) <= length else text[: length - 1] + "…").replace("$", r"\$")


def _save(figure: Figure, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=150, format="png"))
    return path
