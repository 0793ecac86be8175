"""Figures over time, as plots want them: one list per figure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from service.store.records import Event

MOST_POINTS = 10_000


def curve(events: Iterable[Event]) -> dict[int, dict[str, Any]]:
    """The metrics of each epoch; after a `rewind` what was told of later epochs no longer holds."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.type == "rewind":
            kept = int(event.data["epoch"])
            found = {epoch: metrics for epoch, metrics in found.items() if epoch <= kept}
        elif event.epoch is not None:
            found[event.epoch] = event.data.get("metrics") or {}
    return dict(sorted(found.items()))


def best_so_far(journal: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Of a sweep's journal: the value of each trial that ended well, in that order, and the best until then."""
    found: dict[int, dict[str, Any]] = {}
    best = -math.inf
    for line in journal:
        if line.get("type") == "done" and isinstance(line.get("value"), int | float):
            best = max(best, line["value"])
            found[len(found) + 1] = {"trial": line["number"], "value": line["value"], "best": best}
    return found


def thinned(
    points: Mapping[int, Mapping[str, Any]], *, every: int, most: int, names: Collection[str]
) -> dict[str, Any]:
    """The document of a curve: every so many epochs and the last, `most` at most; of `names` only, if there are any."""
    every = max(every, math.ceil(len(points) / most))
    epochs = [epoch for at, epoch in enumerate(points, 1) if at % every == 0 or at == len(points)]
    known = dict.fromkeys(name for metrics in points.values() for name in metrics)
    wanted = [name for name in known if not names or name in names]
    series = {name: [_number(points[epoch].get(name)) for epoch in epochs] for name in wanted}
    return {"epochs": epochs, "series": {k: v for k, v in series.items() if _has_numbers(v)}, "every": every}


def _number(value: Any) -> float | None:
    """None for what no plot can show."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _has_numbers(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)
