"""Dimensions over fields of the training spec, and the paper's table of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.presets import preset_spec
from tuner.config import parse_sweep
from tuner.space import Choice, Integer, LogUniform, Uniform, changed, default_space, nearest


def test_changes_reach_nested_fields_and_leave_the_base_alone():
    base = TrainSpec()
    spec = changed(base, {"method.reg.coefficient": 7, "augment.edge_drop": [0.1, 0.2]})
    assert (spec.method.reg.coefficient, spec.augment.edge_drop) == (7.0, (0.1, 0.2))
    assert changed(spec, {"method.reg.coefficient": 3.0, "augment.edge_drop": [0.4, 0.4]}) == base == TrainSpec()


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"method.tau": 0.5}, "method.tau: unknown key"),
        ({"optimiser.lr.x": 0.5}, "lr is a value, not a section"),
        ({"optimiser.epochs": 1.5}, "optimiser.epochs"),
        ({"method.metric.learn_scale": True, "method.temperature": 0.026}, "Raise method.temperature"),
    ],
)
def test_changes_that_do_not_fit_are_refused_by_name(changes, says):
    with pytest.raises(InvalidInput, match=says):
        changed(TrainSpec(), changes)


@pytest.mark.parametrize(
    "document, coefficient, inner_steps",
    [
        ({}, LogUniform(low=0.3, high=300), True),
        ({"method": {"reg": {"scale": "n_minus_1", "coefficient": 0.1}}}, Uniform(low=0, high=1), True),
        ({"method": {"metric": {"kind": "pair_mlp"}}}, LogUniform(low=0.3, high=300), True),
        ({"method": {"metric": {"kind": "closed_form"}}}, LogUniform(low=0.3, high=300), False),
        ({"method": {"metric": {"kind": "uniform"}}}, None, False),
        ({"method": {"metric": {"kind": "cosine"}}}, None, False),
    ],
)
def test_default_space_has_only_what_acts_on_the_base(document, coefficient, inner_steps):
    space = default_space(parse_spec(document))
    assert space.get("method.reg.coefficient") == coefficient
    assert ("method.inner_steps" in space) is inner_steps
    assert space.keys() >= {"method.temperature", "optimiser.epochs", "optimiser.lr", "optimiser.weight_decay"}


@pytest.mark.parametrize("preset", ["nml", "nml-official"])
def test_default_space_holds_the_papers_table(preset):
    space = default_space(preset_spec(preset, "cora"))
    assert space["method.temperature"] == Uniform(low=0.1, high=1)
    assert space["method.inner_steps"] == Integer(low=1, high=10)
    assert space["optimiser.epochs"].values == (50, 100, 150, 200)
    assert set(space["optimiser.weight_decay"].values) == {0.0, *space["optimiser.lr"].values}


def test_section_may_be_searched_as_a_whole():
    values = [{"coefficient": 0.1, "scale": "n_minus_1"}, {"coefficient": 30, "scale": "one"}]
    spec = parse_sweep({"base": {}, "space": {"method.reg": {"kind": "choice", "values": values}}})
    totals = [changed(spec.base, {"method.reg": value}).method.reg.total(101) for value in values]
    assert totals == [pytest.approx(10), 30]


@given(
    value=st.floats(-1e6, 1e6), ends=st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)).filter(lambda e: e[0] < e[1])
)
def test_nearest_is_within_the_range_and_nothing_within_is_nearer(value, ends):
    low, high = ends
    found = nearest(Uniform(low=low, high=high), value)
    assert low <= found <= high
    assert all(abs(found - value) <= abs(other - value) for other in (low, high, (low + high) / 2))


@pytest.mark.parametrize(
    "value, found",
    [(0.2, 0.1), (0.9, 1.0), (1.0, 1.0), ("all", "all"), ("none", "none"), (True, True), (None, None)],
)
def test_nearest_choice_is_by_distance_for_numbers_and_as_it_is_for_the_rest(value, found):
    assert nearest(Choice(values=(0.1, "all", 1.0)), value) == found
