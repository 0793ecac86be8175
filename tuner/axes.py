"""Where a searched value lies on an axis, the same in every picture: as it is, by its logarithm, or by its index.

Pictures draw on plain axes and write the ticks given here. So a learning rate has room for each factor of ten, a weight
decay of 0 has a place beside those above it, and words stand in a row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.files.documents import value_at
from tuner.config import SweepSpec
from tuner.journal import TrialRecord
from tuner.results import labels, shown
from tuner.space import Choice, Dimension, Grid, Integer, LogUniform, Value, is_number

LOG_SPAN = 100  # choices further apart than this factor are drawn by their logarithm
FEW = 12  # so many ticks can be read
_ZERO_GAP = 0.7  # decades between 0 and the smallest number above it


@dataclass(frozen=True)
class Axis:
    """One searched field. Places are numbers on a plain axis from low to high."""

    path: str
    label: str
    kind: Literal["linear", "log", "names"]
    places: Mapping[int, float]  # of the trials, by number
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] | None  # place and text; None: whatever suits the range
    is_discrete: bool  # several trials may share a value, so that a mean of them makes sense


def axes_of(spec: SweepSpec, trials: Mapping[int, TrialRecord]) -> list[Axis]:
    """An axis for each searched field, with the places of all trials on it."""
    base, names = spec.base.model_dump(mode="json"), labels(spec)
    return [
        _axis(path, names[path], dimension, {n: t.changes.get(path, value_at(base, path)) for n, t in trials.items()})
        for path, dimension in spec.dimensions().items()
    ]


def _axis(path: str, label: str, dimension: Dimension, values: Mapping[int, Value]) -> Axis:
    """values: of the trials, by number. They may lie beyond the dimension: a user's starts need not be in it."""
    marks = _marks(dimension)
    is_discrete = isinstance(dimension, Choice | Grid | Integer)
    about: dict[str, Any] = {"path": path, "label": label, "is_discrete": is_discrete}
    everything = [*marks, *values.values()]
    if not all(is_number(value) for value in everything):
        return _by_name(values, everything, about)
    is_complete = is_discrete and not (isinstance(dimension, Integer) and len(marks) == 2)
    ticks = [float(mark) for mark in marks] if is_complete and len(marks) <= FEW else None
    if isinstance(dimension, LogUniform) or (isinstance(dimension, Choice | Grid) and _spans_decades(marks)):
        return _by_logarithm(values, everything, ticks, about)
    texts = None if ticks is None else tuple((tick, shown(tick)) for tick in ticks)
    places = {number: float(value) for number, value in values.items()}
    low, high = _ends(everything)
    return Axis(kind="linear", places=places, low=low, high=high, ticks=texts, **about)


def _marks(dimension: Dimension) -> list[Value]:
    """Values that an axis must show: all if they are few or were listed, else the ends of the range."""
    if isinstance(dimension, Choice | Grid):
        return list(dimension.values)
    if isinstance(dimension, Integer) and dimension.high - dimension.low < FEW:
        return list(range(dimension.low, dimension.high + 1))
    return [dimension.low, dimension.high]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high, both above 0, about as many as an axis has room for."""
    decades = math.log10(high / low)
    steps: Sequence[float] = (1,) if decades >= 2.5 else (1, 2, 5) if decades >= 1 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    stride = max(1, math.ceil(decades / 8))
    first = math.floor(math.log10(low))
    powers = range(first, math.ceil(math.log10(high)) + 1, stride)
    ticks = [step * 10.0**power for power in powers for step in steps]
    kept = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    return kept if len(kept) > 1 else [low, high]


def _by_logarithm(
    values: Mapping[int, float], everything: Sequence[float], marks: Sequence[float] | None, about: dict[str, Any]
) -> Axis:
    positive = [value for value in everything if value > 0]
    zero = math.log10(min(positive)) - _ZERO_GAP

    def place(value: float) -> float:
        return math.log10(value) if value > 0 else zero

    shown_at = [mark for mark in marks if mark > 0] if marks else log_ticks(min(positive), max(positive))
    ticks = [(place(mark), shown(float(mark))) for mark in shown_at]
    if len(positive) < len(everything):
        ticks.insert(0, (zero, "0"))
    low, high = _ends([place(value) for value in everything])
    places = {number: place(value) for number, value in values.items()}
    return Axis(kind="log", places=places, low=low, high=high, ticks=tuple(ticks), **about)


def _by_name(values: Mapping[int, Value], everything: Iterable[Value], about: dict[str, Any]) -> Axis:
    texts = {json.dumps(value): shown(value) for value in everything}  # as JSON, since lists cannot be looked up
    index = {key: float(at) for at, key in enumerate(texts)}
    ticks = tuple((index[key], text) for key, text in texts.items())
    places = {number: index[json.dumps(value)] for number, value in values.items()}
    return Axis(kind="names", places=places, low=-0.5, high=len(texts) - 0.5, ticks=ticks, **about)


def _ends(places: Sequence[float]) -> tuple[float, float]:
    """Ends of the axis, with some room; a single place gets room on both sides."""
    low, high = float(min(places)), float(max(places))
    room = 0.04 * (high - low) or 0.5
    return low - room, high + room


def _spans_decades(ends: Sequence[float]) -> bool:
    positive = [end for end in ends if end > 0]
    return len(positive) > 1 and min(ends) >= 0 and max(positive) / min(positive) > LOG_SPAN
