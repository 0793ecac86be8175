"""All searched fields at once: parallel coordinates to look at in a browser, in one file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.files.atomic import write_atomically
from tuner.axes import Axis
from tuner.config import SweepSpec
from tuner.journal import TrialRecord
from tuner.results import JUDGED_BY, protocol_line, value_of

_STATES = ("stopped", "ended", "finished", "running", "waiting")


def write_parallel(path: Path, spec: SweepSpec, trials: Mapping[int, TrialRecord], axes: Sequence[Axis]) -> Path | None:
    """Write the page and return where; None, and nothing written, if no trial has a value."""
    values = {number: value for number in sorted(trials) if (value := value_of(trials[number])) is not None}
    if not values:
        return None
    import plotly.graph_objects as go

    low, high = min(values.values()), max(values.values())
    if low == high:  # a bar of one colour, and an axis with a middle
        low, high = low - 0.5, high + 0.5
    states = [state for state in _STATES if any(trials[number].state == state for number in values)]
    dimensions = [
        *(_dimension(axis, list(values)) for axis in axes),
        {
            "label": "state", "values": [states.index(trials[number].state) for number in values],
            "range": [-0.5, len(states) - 0.5], "tickvals": list(range(len(states))), "ticktext": states,
        },
        {"label": spec.objective, "values": list(values.values()), "range": [low, high]},
    ]  # fmt: skip
    colour = {
        "color": list(values.values()), "colorscale": "Viridis", "cmin": low, "cmax": high, "showscale": True,
        "colorbar": {"title": {"text": spec.objective}},
    }  # fmt: skip
    figure = go.Figure(go.Parcoords(dimensions=dimensions, line=colour, labelangle=-20, labelside="top"))
    title = f"{spec.base.data.name}: {len(values)} trials by {JUDGED_BY[spec.objective]}"
    figure.update_layout(
        title={"text": title, "subtitle": {"text": f"{protocol_line(spec)} Drag along an axis to choose trials."}},
        margin={"t": 150, "l": 80, "r": 80},
        font={"family": "sans-serif"},
    )
    page = figure.to_html(include_plotlyjs=True, include_mathjax=False, full_html=True)
    write_atomically(path, lambda temporary: _write(temporary, page))
    return path


def _dimension(axis: Axis, numbers: Sequence[int]) -> dict[str, Any]:
    label = axis.label if axis.kind != "log" else f"{axis.label} (log)"
    found = {"label": label, "values": [axis.places[number] for number in numbers], "range": [axis.low, axis.high]}
    if axis.ticks is not None:
        found |= {"tickvals": [at for at, _ in axis.ticks], "ticktext": [text for _, text in axis.ticks]}
    return found


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
