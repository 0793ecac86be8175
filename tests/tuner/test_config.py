"""Sweep specs are closed and bounded, know their starts, and turn a trial's settings into training specs."""

from __future__ import annotations

import json

import pytest

from trainer.config import parse_spec, spec_hash
from trainer.errors import InvalidInput
from trainer.methods.nml import PUBLISHED
from trainer.presets import preset_document, preset_spec
from tuner.config import SweepSpec, best_spec, default_starts, parse_sweep, sweep_hash, trial_spec

TEMPERATURE = {"kind": "uniform", "low": 0.1, "high": 1}


def sweep(**fields):
    return parse_sweep({"base": {}, **fields})


def space(path="method.temperature", **dimension):
    return {"space": {path: dimension}}


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"trials": 0}, "trials: Input should be greater than or equal to 1"),
        ({"trails": 3}, "trails: unknown key"),
        ({"base": {"method": {"temperature": 0}}}, "base.method.temperature: "),
        (space("method.temprature", **TEMPERATURE), "space.method.temprature: invalid value 0.1: .*unknown key"),
        (space(kind="uniform", low=1, high=0.1), "low .1. must be below high .0.1."),
        (space(kind="uniform", low=0.1, high=0.1), "low .0.1. must be below high .0.1."),
        (space(kind="uniform", low=0.001, high=1), "space.method.temperature: invalid value 0.001"),
        (space(kind="uniform", low=0.1, high=11), "space.method.temperature: invalid value 11.0"),
        (space(kind="gauss", low=0.1, high=1), "'choice', 'grid', 'uniform', 'loguniform', 'integer'"),
        (space(kind="uniform", low=0.1, high=float("nan")), "space.method.temperature.uniform.high: .*finite"),
        (space("optimiser.lr", kind="loguniform", low=0, high=0.1), "low: Input should be greater than 0"),
        (space("optimiser.epochs", kind="uniform", low=10, high=20), "whole numbers; use kind=integer"),
        (space("optimiser.epochs", kind="integer", low=0, high=20), "space.optimiser.epochs: invalid value 0"),
        (space("optimiser.epochs", kind="choice", values=[]), "at least 1 item"),
        (space("optimiser.epochs", kind="choice", values=[10, "many"]), "space.optimiser.epochs: invalid value 'many'"),
        (space("run.seed", kind="integer", low=0, high=9), "space.run.seed: only augment, .* can be searched"),
        (space("data.name", kind="choice", values=["cora"]), "space.data.name: only augment, .* can be searched"),
        (space("evaluation.probe_lr", **TEMPERATURE), "set it in base"),
        (
            {
                "space": {
                    "method.reg": {"kind": "choice", "values": [{"coefficient": 1}]},
                    "method.reg.coefficient": TEMPERATURE,
                }
            },
            "space.method.reg.coefficient: is part of method.reg",
        ),
        ({"algorithm": "grid"}, "needs values; make it a grid or a choice"),
        ({"algorithm": "hope"}, "algorithm: "),
        ({"starts": [{"encoder.dim": 64}]}, "starts.0.encoder.dim: is not in the space"),
        ({"starts": [{}, {"method.temperature": 0.001}]}, "starts.1: method.temperature: "),
        ({"objective": "link_auc", "held_out_edges": 0}, "set held_out_edges above 0"),
        ({"objective": "test_accuracy"}, "objective: "),
        ({"base": {"run": {"workers": 2}}}, "base.run.workers: .*use concurrency"),
        ({"scheduler": {"reduction": 1}}, "scheduler.reduction: "),
        ({"resources": {"cpus": 0}}, "resources.cpus: "),
        ({"budget_minutes": 0}, "budget_minutes: "),
    ],
)
def test_bad_sweeps_are_refused_in_one_line_that_names_the_field(fields, says):
    with pytest.raises(InvalidInput, match=says) as caught:
        sweep(**fields)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("document", [None, [], "base", {}])
def test_what_is_not_a_sweep_is_refused(document):
    with pytest.raises(InvalidInput):
        parse_sweep(document)


def test_sweep_survives_a_round_trip_through_json():
    spec = sweep(
        space={
            "augment.edge_drop": {"kind": "grid", "values": [[0.1, 0.2], [0.3, 0.3]]},
            "sampling.num_neighbors": {"kind": "choice", "values": [None, [10, 10]]},
            "optimiser.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
        },
        starts=[{}, {"augment.edge_drop": [0.0, 0.5]}],
    )
    assert parse_sweep(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_official_sweep_starts_from_the_paper(dataset):
    """The base is the paper's setting already, so it is the only start, and nothing of it was moved into a range."""
    base = preset_spec("nml-official", dataset)
    (start,) = default_starts(SweepSpec(base=base), num_nodes=1_000)
    assert best_spec(SweepSpec(base=base), start) == base.model_copy(
        update={"evaluation": base.evaluation.model_copy(update={"split_seed": 0})}
    )


def test_our_sweep_starts_from_the_base_and_the_papers_coefficient_in_our_unit():
    own, paper = default_starts(SweepSpec(base=preset_spec("nml", "cora")), num_nodes=2_708)
    assert own["method.reg.coefficient"] == 3.0
    assert paper["method.reg.coefficient"] == pytest.approx(0.1 * 2_707)
    assert {**own, "method.reg.coefficient": 0} == {**paper, "method.reg.coefficient": 0}


def test_data_set_without_published_settings_starts_from_the_base_alone():
    base = preset_spec("nml", "digits")
    (start,) = default_starts(SweepSpec(base=base), num_nodes=1_797)
    assert start["optimiser.epochs"] == base.optimiser.epochs
    assert start["method.temperature"] == base.method.temperature


def test_default_starts_stay_within_the_space():
    spec = sweep(
        base={"method": {"temperature": 5}, "optimiser": {"epochs": 1_000, "lr": 3e-3}},
        space={
            "method.temperature": TEMPERATURE,
            "optimiser.epochs": {"kind": "integer", "low": 10, "high": 40},
            "optimiser.lr": {"kind": "choice", "values": [1e-4, 5e-3]},
        },
    )
    assert default_starts(spec, 100) == [
        {"method.temperature": 1.0, "optimiser.epochs": 40, "optimiser.lr": 5e-3},
    ]


def test_default_start_that_cannot_be_trained_is_left_out():
    """Each range fits the base; but moved into both, temperature and scale overflow together."""
    spec = sweep(
        base={"method": {"metric": {"learn_scale": False}}},
        space={
            "method.temperature": {"kind": "uniform", "low": 0.026, "high": 0.028},
            "method.metric.scale": {"kind": "uniform", "low": 9, "high": 10},
        },
    )
    assert default_starts(spec, 100) == []


@pytest.mark.parametrize(
    "fields, longest",
    [
        ({}, 200),  # of the paper's choices
        ({"space": {"method.temperature": TEMPERATURE}}, 70),
        (space("optimiser.epochs", kind="integer", low=5, high=30), 30),
        (space("optimiser.epochs", kind="grid", values=[90, 20]), 90),
        ({"starts": [{"optimiser.epochs": 900}]}, 900),
        ({**space("optimiser.epochs", kind="integer", low=5, high=30), "starts": [{}]}, 70),  # {} is the base
        ({**space("optimiser.epochs", kind="integer", low=5, high=30), "starts": []}, 30),
        (space("optimiser", kind="choice", values=[{"epochs": 11}, {"epochs": 12, "lr": 0.1}]), 12),
    ],
)
def test_longest_trial_is_known_before_any_runs(fields, longest):
    assert sweep(**{"base": {"optimiser": {"epochs": 70}}, **fields}).max_epochs == longest


@pytest.mark.parametrize(
    "epochs, grace_epochs, report_every, grace, every",
    [(80, None, None, 30, 10), (5, None, None, 1, 1), (80, 20, None, 20, 10), (80, 20, 5, 20, 5), (8, 20, None, 8, 1)],
)
def test_looks_come_eight_times_and_the_third_is_the_first_rung(epochs, grace_epochs, report_every, grace, every):
    spec = sweep(
        base={"optimiser": {"epochs": epochs}},
        space={"method.temperature": TEMPERATURE},
        scheduler={"grace_epochs": grace_epochs},
        report_every=report_every,
    )
    assert (spec.grace, spec.every) == (grace, every)


@pytest.mark.parametrize(
    "objective, own, asked, share",
    [
        ("val_accuracy", 0, None, 0),
        ("val_accuracy", 0.2, None, 0.2),
        ("link_auc", 0, None, 0.1),
        ("link_auc", 0.2, None, 0.2),
        ("link_auc", 0.2, 0.3, 0.3),
        ("i_nml", 0.2, 0, 0),
    ],
)
def test_edges_are_held_out_where_the_objective_needs_them(objective, own, asked, share):
    spec = sweep(base={"data": {"held_out_edges": own}}, objective=objective, held_out_edges=asked)
    assert trial_spec(spec, {}).data.held_out_edges == share


def test_trial_trains_the_base_with_its_changes_and_its_own_seed():
    spec = sweep(
        base={**preset_document("nml", "cora"), "run": {"seed": 7, "track": True, "device": "cpu"}},
        resources={"cpus": 3},
        seeds=2,
    )
    first, second = (trial_spec(spec, {"method.temperature": 0.3, "optimiser.epochs": 50}, run) for run in (0, 1))
    assert (first.method.temperature, first.optimiser.epochs) == (0.3, 50)
    assert (first.run.seed, second.run.seed) == (7, 8)
    assert first.evaluation.split_seed == second.evaluation.split_seed == 7, "all runs are judged on one split"
    assert (first.run.track, first.run.export, first.evaluation.figures) == (False, False, False)
    assert (first.run.threads, first.evaluation.watch_every, first.run.checkpoint_every) == (3, spec.every, spec.every)
    assert first.augment == spec.base.augment
    assert first.run.device == "cpu"


def test_best_spec_trains_what_its_trial_trained_but_with_export():
    spec = sweep(base={"run": {"seed": 7}})
    changes = {"method.temperature": 0.3}
    best, trial = best_spec(spec, changes), trial_spec(spec, changes)
    assert best.run.export
    assert best.run == spec.base.run
    assert best.evaluation.split_seed == 7
    assert spec_hash(best) == spec_hash(
        trial.model_copy(
            update={"evaluation": trial.evaluation.model_copy(update={"figures": best.evaluation.figures})}
        )
    )


def test_split_of_the_base_is_kept():
    spec = sweep(base={"evaluation": {"split_seed": 3}, "run": {"seed": 7}})
    assert best_spec(spec, {}).evaluation.split_seed == trial_spec(spec, {}, run=1).evaluation.split_seed == 3


@pytest.mark.parametrize(
    "fields, same",
    [
        ({"concurrency": 4}, True),
        ({"resources": {"cpus": 2, "gpus": 0.5}}, True),
        ({"budget_minutes": 5}, True),
        ({"silence_minutes": 5, "retries": 3}, True),
        ({"seed": 1}, False),
        ({"trials": 31}, False),
        ({"seeds": 2}, False),
        ({"algorithm": "random"}, False),
        ({"scheduler": {"kind": "none"}}, False),
        ({"base": {"encoder": {"dim": 64}}}, False),
        ({"starts": [{}]}, False),
        (space(**TEMPERATURE), False),
    ],
)
def test_hash_ignores_where_and_how_long_and_nothing_else(fields, same):
    assert (sweep_hash(sweep(**fields)) == sweep_hash(sweep())) is same


def test_hash_does_not_depend_on_the_order_of_dimensions():
    one = {"method.temperature": TEMPERATURE, "optimiser.lr": {"kind": "grid", "values": [0.1]}}
    other = dict(reversed(one.items()))
    assert sweep_hash(sweep(space=one)) == sweep_hash(sweep(space=other))


def test_sweep_schema_says_what_every_field_is_for_and_bounds_every_number():
    schema = SweepSpec.model_json_schema()
    parts = {"SweepSpec": schema, **{name: schema["$defs"][name] for name in ("SchedulerSpec", "ResourcesSpec")}}
    fields = {f"{part}.{name}": field for part, body in parts.items() for name, field in body["properties"].items()}
    assert [name for name, field in fields.items() if "description" not in field and "$ref" not in field] == []
    numbers = [
        (name, kind)
        for name, field in fields.items()
        for kind in (field, *field.get("anyOf", ()))
        if kind.get("type") in ("integer", "number")
    ]
    bounds = ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"})
    assert [name for name, kind in numbers if not all(kind.keys() & bound for bound in bounds)] == []


def test_base_spec_is_the_one_of_the_trainer():
    document = preset_document("nml", "digits")
    assert sweep(base=document).base == parse_spec(document)
