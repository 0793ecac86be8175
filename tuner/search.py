"""What a sweep tries next: a function of its spec and of what the journal knows, and of nothing else.

No searcher is kept, so none can be lost: after a kill the search goes on as it would have. Each draw comes from a
stream named by the sweep's seed, the trial's number and the attempt.

A setting is drawn again if it trains exactly what an earlier trial does (runs have fixed seeds: the result is known),
or if its values cannot form a training spec together.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from trainer.config import TrainSpec
from trainer.errors import InvalidInput
from trainer.files.documents import value_at
from tuner.config import SweepSpec
from tuner.journal import TrialRecord
from tuner.space import Choice, Dimension, Grid, Integer, LogUniform, Value, changed

MODELLED = 16  # draws by TPE for one trial, before uniform ones
TRIES = 512  # draws in all, before the combinations of a finite space are gone through
WALK = 1_000  # combinations looked at then, beyond those that were tried


@dataclass(frozen=True)
class Suggestion:
    """The next trial: its number, whether it is a start or was searched for, and what it changes in the base."""

    number: int
    origin: Literal["start", "search"]
    changes: dict[str, Value]


def suggest(
    spec: SweepSpec, trials: Mapping[int, TrialRecord], starts: Sequence[dict[str, Value]]
) -> Suggestion | None:
    """The trial after those given; None when there is none left to try.

    Starts come first, as they are and in order. A grid then goes through all combinations in the order of its sorted
    paths, the last one fastest, and passes over those that were tried or do not fit together. Random search and TPE
    end early too, once every combination of a finite space was tried.

    Raises:
        InvalidInput: no setting was found whose values can form a training spec together; names those that clash.
    """
    number = len(trials)
    if number >= spec.trials:
        return None
    if number < len(starts):
        return Suggestion(number, "start", _plain(starts[number]))
    changes = _first_new(spec.base, trials, _candidates(spec, trials))
    return None if changes is None else Suggestion(number, "search", changes)


def _candidates(spec: SweepSpec, trials: Mapping[int, TrialRecord]) -> Iterator[dict[str, Value]]:
    """Settings in the order in which they are considered for the next trial."""
    space = _space(spec)
    number, levels = len(trials), _levels(space)
    if spec.algorithm == "grid":
        assert levels is not None, "SweepSpec lets a grid have values only"
        return (_combination(levels, index) for index in range(_size(levels)))
    modelled = MODELLED if spec.algorithm == "tpe" else 0
    drawn = (_uniform(spec.seed, space, number, attempt) for attempt in range(modelled, TRIES))
    found = chain(_by_tpe(spec, space, trials, modelled), drawn)
    return found if levels is None else chain(found, _walk(spec.seed, levels, number))


def _by_tpe(
    spec: SweepSpec, space: dict[str, Dimension], trials: Mapping[int, TrialRecord], attempts: int
) -> Iterator[dict[str, Value]]:
    if attempts:
        from tuner import tpe  # Optuna takes a while to load, and random search and grids do without

        document = spec.base.model_dump(mode="json")
        study = tpe.study_of(space, trials, {path: value_at(document, path) for path in space})
        for attempt in range(attempts):
            stream = np.random.SeedSequence(_name(spec.seed, "tpe", len(trials), attempt))
            yield tpe.draw(study, space, int(stream.generate_state(1)[0]))


def _uniform(seed: int, space: dict[str, Dimension], number: int, attempt: int) -> dict[str, Value]:
    return {path: _drawn(space[path], np.random.default_rng(_name(seed, path, number, attempt))) for path in space}


def _drawn(dimension: Dimension, stream: np.random.Generator) -> Value:
    if isinstance(dimension, Choice | Grid):
        return dimension.values[int(stream.integers(len(dimension.values)))]
    if isinstance(dimension, Integer):
        return int(stream.integers(dimension.low, dimension.high, endpoint=True))
    if isinstance(dimension, LogUniform):
        value = math.exp(stream.uniform(math.log(dimension.low), math.log(dimension.high)))
    else:
        value = float(stream.uniform(dimension.low, dimension.high))
    return min(max(value, dimension.low), dimension.high)  # exp and log may round beyond the ends


def _walk(seed: int, levels: dict[str, Sequence[Value]], tried: int) -> Iterator[dict[str, Value]]:
    """Combinations one after the other from a drawn one on: draws seldom hit the last few that are left."""
    size = _size(levels)
    first = int(np.random.default_rng(_name(seed, "walk", tried)).integers(min(size, 2**62)))
    return (_combination(levels, (first + step) % size) for step in range(min(size, tried + WALK)))


def _space(spec: SweepSpec) -> dict[str, Dimension]:
    """The dimensions by sorted path, since the order of keys in a document means nothing; values as JSON has them."""
    space = dict(sorted(spec.dimensions().items()))
    for path, dimension in space.items():
        if isinstance(dimension, Choice | Grid):
            space[path] = dimension.model_copy(update={"values": tuple(_plain(dimension.values))})
    return space


def _levels(space: dict[str, Dimension]) -> dict[str, Sequence[Value]] | None:
    """All values of each dimension, or None if one is continuous."""
    result: dict[str, Sequence[Value]] = {}
    for path, dimension in space.items():
        if isinstance(dimension, Choice | Grid):
            result[path] = dimension.values
        elif isinstance(dimension, Integer):
            result[path] = range(dimension.low, dimension.high + 1)
        else:
            return None
    return result


def _size(levels: dict[str, Sequence[Value]]) -> int:
    return math.prod(len(values) for values in levels.values())


def _combination(levels: dict[str, Sequence[Value]], index: int) -> dict[str, Value]:
    """Number `index` of all combinations, the last dimension changing fastest."""
    result = {}
    for path in reversed(levels):
        index, at = divmod(index, len(levels[path]))
        result[path] = levels[path][at]
    return {path: result[path] for path in levels}


def _first_new(
    base: TrainSpec, trials: Mapping[int, TrialRecord], candidates: Iterable[dict[str, Value]]
) -> dict[str, Value] | None:
    """The first candidate that fits together and trains what no trial did."""
    tried = {spec for trial in trials.values() if isinstance(spec := _fitted(base, trial.changes), TrainSpec)}
    clashing: dict[str, Value] | None = None
    fits = False
    for changes in candidates:
        fitted = _fitted(base, changes)
        if isinstance(fitted, InvalidInput):
            clashing = clashing or changes
        elif fitted not in tried:
            return changes
        else:
            fits = True
    if clashing is not None and not fits and not tried:
        raise _clash(base, clashing)
    return None  # after many draws: what is left, if anything, is too rare to look for


def _fitted(base: TrainSpec, changes: dict[str, Value]) -> TrainSpec | InvalidInput:
    try:
        return changed(base, changes)
    except InvalidInput as error:
        return error


def _clash(base: TrainSpec, changes: dict[str, Value]) -> InvalidInput:
    """What to say of values that do not go together, less those without which they still do not."""
    for path in list(changes):
        fewer = {other: value for other, value in changes.items() if other != path}
        if isinstance(_fitted(base, fewer), InvalidInput):
            changes = fewer
    values = " with ".join(f"{path}={json.dumps(value)}" for path, value in changes.items())
    reason = "; ".join(str(_fitted(base, changes)).splitlines())
    return InvalidInput(
        f"space: found no setting that can be trained, for instance {values} does not do ({reason}). "
        "Narrow one of these dimensions, or set it in base."
    )


def _name(seed: int, purpose: str, *counters: int) -> list[int]:
    """A stream's name as numpy takes it; like trainer.data.seeds, which would load torch."""
    return [seed, zlib.crc32(b"search"), zlib.crc32(purpose.encode()), *counters]


def _plain(value: Value) -> Value:
    """As the journal gives it back: lists for tuples."""
    return json.loads(json.dumps(value))
