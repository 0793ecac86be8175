"""Figures over time, as plots want them: one list per figure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from service.store.records import Event
from trainer.files.journal import epoch_of

MOST_POINTS = 10_000


def curve(
    events: Iterable[Event], *, every: int = 1, most: int = MOST_POINTS, names: Collection[str] = ()
) -> dict[str, Any]:  # fmt: skip
    """The document of a run's epochs; a `rewind` takes back the epochs after its own.

    However many events there are, no more than twice `most` epochs are held, and of them only numbers.

    Args:
        events: in order; the newest epoch may come once more, or only, at the end.
        every: only epochs whose number is divisible by it, and the last.
        most: about how many epochs at most; for more, `every` becomes a multiple of what was asked.
        names: only these figures, if there are any.
    """
    found: dict[int, dict[str, float]] = {}
    last: tuple[int, dict[str, float]] | None = None
    rewound, kept = 0, 0  # number of the newest rewind, and the last epoch that it kept
    for event in events:
        if event.type == "rewind":
            rewound, kept = event.seq, epoch_of(event.data)
            found = {epoch: point for epoch, point in found.items() if epoch <= kept}
            last = None if last is None or last[0] > kept else last
        elif event.epoch is not None and (event.seq > rewound or event.epoch <= kept):
            point = _numbers(event.data.get("metrics"), names)
            if last is None or event.epoch >= last[0]:
                last = event.epoch, point
            if event.epoch % every == 0:
                found[event.epoch] = point
                if len(found) > 2 * most:
                    found, every = _coarser(found, 2 * every), 2 * every
    return _document(found, last, every=every, most=most)


def best_so_far(journal: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Of a sweep's journal: the value of each trial that ended well, in that order, and the best until then."""
    found: dict[int, dict[str, Any]] = {}
    best = -math.inf
    for line in journal:
        if line.get("type") == "done" and isinstance(line.get("value"), int | float):
            best = max(best, line["value"])
            found[len(found) + 1] = {"trial": line["number"], "value": line["value"], "best": best}
    return found


def trials(points: Mapping[int, Mapping[str, Any]], *, every: int, most: int, names: Collection[str]) -> dict[str, Any]:
    """The document of a sweep's trials (`best_so_far`): every so many and the last, about `most` at most."""
    every = max(every, math.ceil(len(points) / most))
    found = {number: _numbers(point, names) for number, point in points.items()}
    last = max(found.items(), default=None)
    return _document(_coarser(found, every), last, every=every, most=most)


def _document(
    found: dict[int, dict[str, float]], last: tuple[int, dict[str, float]] | None, *, every: int, most: int
) -> dict[str, Any]:  # fmt: skip
    if len(found) > most:
        every *= math.ceil(len(found) / most)
        found = _coarser(found, every)
    if last is not None:
        found[last[0]] = last[1]
    epochs = sorted(found)
    shown = dict.fromkeys(name for epoch in epochs for name in found[epoch])
    return {"epochs": epochs, "series": {n: [found[epoch].get(n) for epoch in epochs] for n in shown}, "every": every}


def _coarser(found: dict[int, dict[str, float]], every: int) -> dict[int, dict[str, float]]:
    return {number: point for number, point in found.items() if number % every == 0}


def _numbers(metrics: Any, names: Collection[str]) -> dict[str, float]:
    """What a plot can show of an epoch's figures."""
    if not isinstance(metrics, Mapping):
        return {}
    return {name: value for name, value in metrics.items() if (not names or name in names) and _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
