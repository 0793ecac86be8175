"""A suggestion follows from spec, seed and journal alone, stays within the space, and is worth a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import InvalidInput
from tuner.config import default_starts, parse_sweep
from tuner.journal import Journal, Report, TrialRecord
from tuner.search import Suggestion, suggest
from tuner.space import changed

SPACE = {
    "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
    "optimiser.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "optimiser.weight_decay": {"kind": "uniform", "low": 0, "high": 0.1},
    "method.inner_steps": {"kind": "integer", "low": 1, "high": 10},
    "augment.edge_drop": {"kind": "choice", "values": [[0.1, 0.2], [0.3, 0.3], [0.5, 0.0]]},
    "sampling.num_neighbors": {"kind": "choice", "values": [None, [10, 10], [5, -1]]},
    "method.metric": {"kind": "choice", "values": [{"kind": "uniform"}, {"kind": "siamese_cos", "scale": 2.0}]},
}
SMALL = {
    "optimiser.lr": {"kind": "choice", "values": [1e-4, 1e-3, 1e-2]},
    "method.inner_steps": {"kind": "integer", "low": 1, "high": 4},
    "augment.undirected": {"kind": "grid", "values": [False, True]},
}
GRID = {
    "optimiser.lr": {"kind": "grid", "values": [1e-3, 1e-2]},
    "encoder.layers": {"kind": "choice", "values": [1, 2, 3]},
    "augment.edge_drop": {"kind": "grid", "values": [[0.1, 0.1], [0.2, 0.2]]},
}


def sweep(space=SPACE, **fields):
    return parse_sweep({"base": {}, "space": space, "trials": 100, **fields})


def goodness(changes):
    """Largest, 1, at a temperature of 0.7, a learning rate of 0.01 and 3 inner steps."""
    distance = (changes["method.temperature"] - 0.7) ** 2 / 0.1
    distance += (math.log10(changes["optimiser.lr"]) + 2) ** 2
    return 1 - distance - (changes["method.inner_steps"] - 3) ** 2 / 20


def finished(suggestion, value):
    return TrialRecord(suggestion.number, suggestion.origin, suggestion.changes, "finished", value=value)


def played(spec, starts=(), value=goodness, trials=None):
    """All trials of a sweep, one after the other."""
    trials = {} if trials is None else dict(trials)
    while (suggestion := suggest(spec, trials, starts)) is not None:
        trials[suggestion.number] = finished(suggestion, value(suggestion.changes))
    return trials


def settings_of(trials):
    return [record.changes for record in trials.values()]


def within(changes, space):
    for path, dimension in space.items():
        value = changes[path]
        if "values" in dimension:
            assert value in dimension["values"]
        else:
            assert dimension["low"] <= value <= dimension["high"]
            assert type(value) is (int if dimension["kind"] == "integer" else float)
    assert list(changes) == sorted(space)


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_suggestions_lie_within_the_space_and_can_be_trained(algorithm):
    spec = sweep(algorithm=algorithm, trials=30)
    for changes in settings_of(played(spec)):
        within(changes, SPACE)
        changed(spec.base, changes)
        assert json.loads(json.dumps(changes)) == changes


def test_starts_come_first_as_they_are_and_count_as_trials():
    starts = [{}, {"method.temperature": 0.9}, {"method.inner_steps": 2, "optimiser.lr": 0.5}]
    trials = played(sweep(trials=5), starts, value=lambda _: 0.5)
    assert settings_of(trials)[:3] == starts
    assert [record.origin for record in trials.values()] == ["start"] * 3 + ["search"] * 2
    assert settings_of(played(sweep(trials=2), starts, value=lambda _: 0.5)) == starts[:2]


def test_numbers_count_up_and_end_with_the_trials_asked_for():
    spec = sweep(trials=3, algorithm="random")
    assert list(played(spec)) == [0, 1, 2]
    assert suggest(spec, played(spec), ()) is None


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_seed_decides(algorithm):
    one, same, other = (settings_of(played(sweep(seed=seed, algorithm=algorithm, trials=14))) for seed in (0, 0, 1))
    assert one == same
    assert all(left != right for left, right in zip(one, other, strict=True))


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_order_of_keys_and_trials_and_numpys_own_stream_mean_nothing(algorithm):
    trials = played(sweep(algorithm=algorithm, trials=15))
    wanted = suggest(sweep(algorithm=algorithm), trials, ())
    np.random.seed(1)
    state = np.random.get_state()[1].tolist()
    reversed_space = dict(reversed(SPACE.items()))
    shuffled = {
        number: TrialRecord(
            number, record.origin, dict(reversed(record.changes.items())), record.state, value=record.value
        )
        for number, record in reversed(trials.items())
    }
    assert suggest(sweep(reversed_space, algorithm=algorithm), shuffled, ()) == wanted
    assert np.random.get_state()[1].tolist() == state, "and it was not drawn from"


def test_other_process_suggests_the_same(repo_root):
    """Python orders sets of words differently in every process."""
    spec = sweep(trials=20)
    trials = played(spec, trials=played(sweep(trials=12)))
    code = (
        "import json, sys\n"
        "from tuner.config import parse_sweep; from tuner.journal import TrialRecord\n"
        "from tuner.search import suggest\n"
        "document, past = json.load(sys.stdin)\n"
        "trials = {n: TrialRecord(n, 'search', c, 'finished', value=v) for n, (c, v) in enumerate(past)}\n"
        "print(json.dumps(suggest(parse_sweep(document), trials, ()).changes))"
    )
    past = [(record.changes, record.value) for number, record in trials.items() if number < 19]
    run = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps([spec.model_dump(mode="json"), past]), cwd=repo_root,
        env={**os.environ, "PYTHONHASHSEED": "4711"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(run.stdout) == trials[19].changes


def drive(path, spec, starts, *, restart):
    """A driver with two trials at a time; `restart` says after which events it is killed and started again."""
    journal, written = Journal.open(path, spec), 0

    def record(kind, **fields):
        nonlocal journal, written
        journal.record(kind, **fields)
        written += 1
        if restart(written):
            journal.close()
            with (path / "events.jsonl").open("a") as file:
                file.write('{"type": "repo')
            journal = Journal.open(path, spec)
            journal.record("resume")

    def alive():
        return [trial.number for trial in journal.trials.values() if not trial.is_final]

    while True:
        while len(alive()) < 2 and (suggestion := suggest(spec, journal.trials, starts)) is not None:
            record("trial", number=suggestion.number, origin=suggestion.origin, changes=suggestion.changes)
        if not alive():
            break
        number = alive()[len(journal.trials) % len(alive())]
        record("running", number=number, host="h", pid=1)
        value = goodness({**starts[0], **journal.trials[number].changes})
        stop = value < 0.2
        record(
            "report", number=number, run=0, epoch=25, value=value, figures={}, seconds=1.0,
            decision="stop" if stop else "continue",
        )  # fmt: skip
        state = "failed" if value < -1 else "stopped" if stop else "finished"
        record(
            "done", number=number, state=state, value=None if state == "failed" else value, values=[], epoch=25,
            seconds=1.0, error=None,
        )  # fmt: skip
    journal.close()
    return [(trial.changes, trial.state, trial.value) for trial in journal.trials.values()]


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_search_interrupted_after_any_event_goes_on_as_if_it_had_not_been(tmp_path, algorithm):
    spec = sweep(algorithm=algorithm, trials=25, seed=3)
    starts = default_starts(spec, 100)
    whole = drive(tmp_path / "whole", spec, starts, restart=lambda written: False)
    assert len(whole) == 25
    assert {state for _, state, _ in whole} == {"finished", "stopped", "failed"}
    assert drive(tmp_path / "torn", spec, starts, restart=lambda written: written % 3 == 2) == whole


def test_running_and_waiting_trials_are_the_same_to_the_search():
    trials = played(sweep(trials=14))
    for number in (12, 13):
        trials[number].state, trials[number].value = "waiting", None
    waiting = suggest(sweep(), trials, ())
    for number in (12, 13):
        trials[number].state = "running"
        trials[number].reports = [Report(0, 25, 0.5, {}, "continue")]
    assert suggest(sweep(), trials, ()) == waiting


def test_trials_suggested_side_by_side_differ():
    spec, trials = sweep(trials=20), played(sweep(trials=12))
    while (suggestion := suggest(spec, trials, ())) is not None:
        trials[suggestion.number] = TrialRecord(suggestion.number, "search", suggestion.changes, "running")
    texts = {json.dumps(changes, sort_keys=True) for changes in settings_of(trials)}
    assert len(texts) == 20


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
@pytest.mark.parametrize("state", ["running", "failed", "finished"])
def test_finite_space_is_tried_without_repetition_until_it_is_used_up(algorithm, state):
    spec, trials = sweep(SMALL, algorithm=algorithm), {}
    while (suggestion := suggest(spec, trials, ())) is not None:
        within(suggestion.changes, SMALL)
        value = 0.5 if state == "finished" else None
        trials[suggestion.number] = TrialRecord(suggestion.number, "search", suggestion.changes, state, value=value)
    found = [tuple(changes.values()) for changes in settings_of(trials)]
    assert sorted(found) == sorted(product([False, True], [1, 2, 3, 4], [1e-4, 1e-3, 1e-2]))


def test_setting_that_only_looks_different_is_not_tried_again():
    """What a start leaves out is the base's, and 1 is 1.0."""
    space = {
        "optimiser.weight_decay": {"kind": "choice", "values": [0, 1]},
        "encoder.layers": {"kind": "choice", "values": [2]},
    }
    starts = [{}, {"optimiser.weight_decay": 1.0, "encoder.layers": 2}]
    for algorithm in ("tpe", "random", "grid"):
        assert settings_of(played(sweep(space, algorithm=algorithm), starts, value=lambda _: 0.5)) == starts


def test_space_of_nothing_is_one_setting():
    assert settings_of(played(sweep({}), value=lambda _: 0.5)) == [{}]


def test_grid_tries_each_combination_once_in_the_order_of_sorted_paths():
    wanted = list(product([[0.1, 0.1], [0.2, 0.2]], [1, 2, 3], [1e-3, 1e-2]))
    for space in (GRID, dict(reversed(GRID.items()))):
        trials = played(sweep(space, algorithm="grid"), value=lambda _: 0.5)
        assert [tuple(changes.values()) for changes in settings_of(trials)] == wanted
        assert list(trials[0].changes) == sorted(GRID)


def test_grid_leaves_out_what_a_start_covers():
    start = {"optimiser.lr": 1e-2, "encoder.layers": 3, "augment.edge_drop": [0.1, 0.1]}
    elsewhere = {**start, "optimiser.lr": 0.5}
    trials = played(sweep(GRID, algorithm="grid"), [start, elsewhere], value=lambda _: 0.5)
    assert len(trials) == 1 + 2 * 3 * 2
    assert settings_of(trials).count(start) == 1


def test_grid_ends_at_the_trials_asked_for():
    assert len(played(sweep(GRID, algorithm="grid", trials=5), value=lambda _: 0.5)) == 5


CLASH = {
    "method.metric.learn_scale": {"kind": "grid", "values": [False, True]},
    "method.temperature": {"kind": "grid", "values": [0.027, 0.5]},  # 0.027 overflows where the scale is learned
    "encoder.dim": {"kind": "grid", "values": [64, 128]},
}
FIXED_SCALE = {"method": {"metric": {"learn_scale": False}}}


@pytest.mark.parametrize("algorithm", ["random", "tpe", "grid"])
def test_values_that_do_not_go_together_are_passed_over(algorithm):
    spec = sweep(CLASH, base=FIXED_SCALE, algorithm=algorithm)
    found = {(c["method.metric.learn_scale"], c["method.temperature"], c["encoder.dim"]) for c in settings_of(
        played(spec, value=lambda _: 0.5))}  # fmt: skip
    everything = set(product([False, True], [0.027, 0.5], [64, 128]))
    assert found == {values for values in everything if values[:2] != (True, 0.027)}


@pytest.mark.parametrize("algorithm", ["random", "tpe", "grid"])
def test_space_of_which_nothing_can_be_trained_names_the_fields_that_clash(algorithm):
    space = {
        "method.metric.learn_scale": {"kind": "choice", "values": [True]},
        "method.temperature": {"kind": "choice", "values": [0.026, 0.027]},
        "encoder.dim": {"kind": "choice", "values": [64, 128]},
    }
    with pytest.raises(
        InvalidInput, match=r"method.metric.learn_scale=true with method.temperature=0.02[67]"
    ) as caught:
        suggest(sweep(space, base=FIXED_SCALE, algorithm=algorithm), {}, ())
    assert "encoder.dim" not in str(caught.value), "which has no part in it"
    assert len(str(caught.value).splitlines()) == 1


def test_search_loads_no_torch_and_no_ray(repo_root):
    code = "import sys, tuner.search, tuner.tpe; print(*{'torch', 'ray', 'scipy', 'pandas'} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


DIMENSIONS = st.one_of(
    st.tuples(st.floats(0.03, 5), st.floats(0.03, 5)).filter(lambda ends: ends[0] < ends[1]).flatmap(
        lambda ends: st.sampled_from(["uniform", "loguniform"]).map(
            lambda kind: {"kind": kind, "low": ends[0], "high": ends[1]}
        )
    ),
    st.lists(st.floats(0.03, 5), min_size=1, max_size=3).map(lambda values: {"kind": "choice", "values": values}),
)  # fmt: skip
OUTCOMES = st.tuples(
    st.sampled_from(["waiting", "running", "finished", "stopped", "failed", "ended"]),
    st.floats(-1e6, 1e6),
    st.lists(st.integers(1, 200), max_size=2),
)


@settings(max_examples=30, deadline=None)
@given(
    temperature=DIMENSIONS,
    algorithm=st.sampled_from(["tpe", "random"]),
    seed=st.integers(0, 2**31 - 1),
    outcomes=st.lists(OUTCOMES, max_size=16),
)
def test_after_any_history_the_suggestion_is_new_and_valid(temperature, algorithm, seed, outcomes):
    space = {"method.temperature": temperature, "method.inner_steps": {"kind": "integer", "low": 0, "high": 100}}
    spec, trials = sweep(space, algorithm=algorithm, seed=seed), {}
    for state, value, epochs in outcomes:
        suggestion = suggest(spec, trials, ())
        assert suggestion == suggest(spec, dict(trials), ())
        assert isinstance(suggestion, Suggestion)
        within(suggestion.changes, space)
        assert suggestion.changes not in settings_of(trials)
        changed(spec.base, suggestion.changes)
        reports = [Report(0, epoch, value, {}, "continue") for epoch in epochs]
        final = value if state == "finished" else None
        trials[len(trials)] = TrialRecord(len(trials), "search", suggestion.changes, state, reports, final)
