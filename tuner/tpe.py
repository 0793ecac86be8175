"""Optuna's TPE as a function: past trials in, one setting out. Nothing of it outlives a suggestion.

The model is made anew from the journal each time (about 0.2 ms per past trial), with a sampler seeded by the caller, so
there is no sampler state that a kill could lose.

    finished            COMPLETE: ranked by value
    stopped, ended      PRUNED: ranked behind every finished one, those that got further first, then by value
    running, waiting    RUNNING: counted among the bad ones, so that parallel trials keep apart (constant liar)
    failed, or ended without a word: left out, like Optuna's FAIL; they say nothing of how good a setting is

Epochs mean the same whatever a trial's T_E is, since nothing in training depends on how long it will last. So "got
further" compares trials of different length fairly; the ranking of stopped ones only matters while fewer than a tenth
of all trials have finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.journal import TrialRecord
from tuner.space import Choice, Dimension, Grid, Integer, LogUniform, Value, is_number

STARTUP_TRIALS = 10  # finished or stopped trials below which draws are uniform; Optuna's own default


def study_of(
    space: Mapping[str, Dimension], trials: Mapping[int, TrialRecord], base: Mapping[str, Value]
) -> optuna.Study:
    """A study in memory that knows the trials, in order of their numbers; what one does not change is the base's.

    A trial with a value outside of the space, as starts may have, is left out: no distribution could hold it.
    """
    if optuna.logging.get_verbosity() < optuna.logging.WARNING:  # "a new study created", once per suggestion
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", storage=optuna.storages.InMemoryStorage())
    distributions = {path: _distribution(space[path]) for path in sorted(space)}
    for number in sorted(trials):
        parameters = _parameters(space, {**base, **trials[number].changes})
        known = None if parameters is None else _frozen(trials[number], parameters, distributions)
        if known is not None:
            study.add_trial(known)
    return study


def draw(study: optuna.Study, space: Mapping[str, Dimension], seed: int) -> dict[str, Value]:
    """One setting. The study takes it for running from now on, so that a further draw keeps away from it."""
    study.sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=True, constant_liar=True, n_startup_trials=STARTUP_TRIALS
    )
    asked = study.ask({path: _distribution(space[path]) for path in sorted(space)})
    return {path: _value(space[path], asked.params[path]) for path in sorted(space)}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Choice | Grid):  # by index: Optuna's categories must not be lists
        return CategoricalDistribution(range(len(dimension.values)))
    if isinstance(dimension, Integer):
        return IntDistribution(dimension.low, dimension.high)
    return FloatDistribution(dimension.low, dimension.high, log=isinstance(dimension, LogUniform))


def _value(dimension: Dimension, parameter: Any) -> Value:
    return dimension.values[parameter] if isinstance(dimension, Choice | Grid) else parameter


def _parameters(space: Mapping[str, Dimension], values: Mapping[str, Value]) -> dict[str, Any] | None:
    """The values in Optuna's terms; None if one is outside of its dimension."""
    result: dict[str, Any] = {}
    for path, dimension in space.items():
        value = values[path]
        if isinstance(dimension, Choice | Grid):
            if value not in dimension.values:
                return None
            result[path] = dimension.values.index(value)
        else:
            if not is_number(value) or not dimension.low <= value <= dimension.high:
                return None
            if isinstance(dimension, Integer) and value != int(value):
                return None
            result[path] = value
    return result


def _frozen(
    trial: TrialRecord, parameters: dict[str, Any], distributions: dict[str, BaseDistribution]
) -> FrozenTrial | None:
    state, value, steps = TrialState.RUNNING, None, None
    if trial.state == "finished":
        if trial.value is None:
            return None
        state, value = TrialState.COMPLETE, trial.value
    elif trial.state in ("stopped", "ended"):
        steps = {report.epoch: report.value for report in trial.reports if report.run == 0}
        if not steps:
            return None
        state = TrialState.PRUNED
    elif trial.state == "failed":
        return None
    return create_trial(
        state=state, value=value, params=parameters, distributions=distributions, intermediate_values=steps
    )
