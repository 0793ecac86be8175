"""Optuna is told of the past as it was, and what it makes of it beats chance."""

from __future__ import annotations

import math
import warnings

import numpy as np
import optuna
import pytest

from tuner.config import parse_sweep
from tuner.journal import Report, TrialRecord
from tuner.search import suggest
from tuner.tpe import study_of

SPACE = {
    "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
    "optimiser.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "method.inner_steps": {"kind": "integer", "low": 1, "high": 10},
    "sampling.num_neighbors": {"kind": "choice", "values": [None, [10, 10]]},
}


def sweep(space=SPACE, **fields):
    return parse_sweep({"base": {}, "space": space, "trials": 100, **fields})


def goodness(changes):
    """Largest, 1, at a temperature of 0.7, a learning rate of 0.01 and 3 inner steps."""
    distance = (changes["method.temperature"] - 0.7) ** 2 / 0.1
    distance += (math.log10(changes["optimiser.lr"]) + 2) ** 2
    return 1 - distance - (changes["method.inner_steps"] - 3) ** 2 / 20


def played(spec, starts=(), value=goodness):
    """All trials of a sweep, one after the other."""
    trials = {}
    while (suggestion := suggest(spec, trials, starts)) is not None:
        record = TrialRecord(suggestion.number, suggestion.origin, suggestion.changes, "finished")
        record.value = value(suggestion.changes)
        trials[suggestion.number] = record
    return trials


def test_start_outside_of_the_space_is_left_out_of_the_model():
    spec = sweep(trials=14)
    strange = {"optimiser.lr": 0.9, "sampling.num_neighbors": [1, 1], "method.inner_steps": 2}
    trials = played(spec, [strange], value=lambda changes: 0.5)
    assert len(trials) == 14
    dimensions = spec.dimensions()
    base = {**trials[5].changes}
    assert len(study_of(dimensions, trials, base).trials) == 13
    assert len(study_of(dimensions, {0: TrialRecord(0, "start", {}, "finished", value=0.1)}, base).trials) == 1


def test_states_reach_optuna_as_they_are_meant():
    spec = sweep({"method.temperature": SPACE["method.temperature"]})
    reports = [Report(0, 25, 0.3, {}, "continue"), Report(0, 50, 0.2, {}, "stop"), Report(1, 75, 0.9, {}, "continue")]
    records = [
        ("finished", 0.7, reports), ("stopped", 0.2, reports[:2]), ("ended", None, reports), ("ended", None, []),
        ("failed", None, reports), ("running", None, reports), ("waiting", None, []),
    ]  # fmt: skip
    trials = {
        number: TrialRecord(number, "search", {"method.temperature": 0.1 + number / 10}, state, past, value)
        for number, (state, value, past) in enumerate(records)
    }
    study = study_of(spec.dimensions(), trials, {"method.temperature": 0.5})
    known = [
        (trial.state.name, trial.value, trial.params["method.temperature"], trial.intermediate_values)
        for trial in study.trials
    ]
    steps = {25: 0.3, 50: 0.2}
    assert known == [
        ("COMPLETE", 0.7, 0.1, {}),
        ("PRUNED", None, pytest.approx(0.2), steps),
        ("PRUNED", None, pytest.approx(0.3), steps),
        ("RUNNING", None, pytest.approx(0.6), {}),
        ("RUNNING", None, pytest.approx(0.7), {}),
    ]


def test_optuna_says_nothing_and_keeps_quieter_settings(capfd):
    before = optuna.logging.get_verbosity()
    try:
        for verbosity in (optuna.logging.INFO, optuna.logging.ERROR):
            optuna.logging.set_verbosity(verbosity)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                suggest(sweep(), played(sweep(trials=12)), ())
            assert optuna.logging.get_verbosity() == max(verbosity, optuna.logging.WARNING)
        assert capfd.readouterr() == ("", "")
    finally:
        optuna.logging.set_verbosity(before)


@pytest.mark.slow
def test_tpe_finds_better_settings_than_random_search():
    """Mean over seeds of the best of 40 trials, and of their second half, which TPE knows where to look for."""
    space = {path: SPACE[path] for path in ("method.temperature", "optimiser.lr", "method.inner_steps")}
    best, late = {}, {}
    for algorithm in ("tpe", "random"):
        values = np.array(
            [
                [record.value for record in played(sweep(space, algorithm=algorithm, trials=40, seed=seed)).values()]
                for seed in range(6)
            ]
        )
        best[algorithm], late[algorithm] = values.max(1).mean(), values[:, 20:].mean()
    assert best["tpe"] > best["random"]
    assert late["tpe"] > late["random"] + 0.3
