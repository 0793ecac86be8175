"""Specs are closed, bounded, hashed and overridable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.config import TrainSpec, parse_spec, spec_hash
from trainer.errors import InvalidInput
from trainer.files.documents import apply_overrides, read_document
from trainer.methods.nml import PUBLISHED
from trainer.presets import PRESETS, preset_document, preset_spec


@pytest.mark.parametrize(
    "document, field",
    [
        ({"optimizer": {}}, "optimizer"),
        ({"method": {"tau": 0.5}}, "method.tau"),
        ({"method": {"temperature": 0.01}}, "method.temperature"),
        ({"method": {"temperature": float("nan")}}, "method.temperature"),
        ({"optimiser": {"epochs": 0}}, "optimiser.epochs"),
        ({"optimiser": {"lr": float("inf")}}, "optimiser.lr"),
        ({"augment": {"edge_drop": [1.0, 0.0]}}, "augment.edge_drop"),
        ({"augment": {"edge_drop": [0.1]}}, "augment.edge_drop"),
        ({"run": {"seed": -1}}, "run.seed"),
        ({"run": {"device": "cuda:0; rm"}}, "run.device"),
        ({"data": {"held_out_edges": 0.6}}, "data.held_out_edges"),
        ({"data": {"held_out_edges": -0.1}}, "data.held_out_edges"),
        ({"data": {"held_out_seed": -1}}, "data.held_out_seed"),
        ({"evaluation": {"watch_every": -1}}, "evaluation.watch_every"),
        ({"run": {"export": "perhaps"}}, "run.export"),
        ({"data": {"name": "files"}}, "data"),
        ({"data": {"name": "cora", "files": {"npz": "x.npz"}}}, "data"),
        ({"data": {"name": "files", "files": {"nodes": "n.csv"}}}, "data.files"),
        ({"data": {"name": "synthetic", "synthetic": {"nodes": 3, "classes": 5}}}, "data.synthetic"),
        ({"method": {"metric": {"kind": "os.system"}}}, "method.metric.kind"),
        ({"method": {"temperature": 0.028, "metric": {"scale": 10}}}, "Raise method.temperature"),
    ],
)
def test_bad_specs_are_refused_by_field_name(document, field):
    with pytest.raises(InvalidInput) as caught:
        parse_spec(document)
    assert field in str(caught.value)


def test_every_number_is_bounded():
    """A field without a bound would let a client ask for anything."""

    def unbounded(schema, path):
        for name, field in schema.get("properties", {}).items():
            kinds = [field, *field.get("anyOf", [])]
            for kind in kinds:
                numeric = kind.get("type") in ("integer", "number")
                lower = {"minimum", "exclusiveMinimum"} & kind.keys()
                upper = {"maximum", "exclusiveMaximum"} & kind.keys()
                if numeric and not (lower and upper):
                    yield f"{path}.{name}"

    schema = TrainSpec.model_json_schema()
    assert [name for part, body in schema["$defs"].items() for name in unbounded(body, part)] == []


def test_every_field_says_what_it_is_for():
    schema = TrainSpec.model_json_schema()
    silent = [
        f"{part}.{name}"
        for part, body in schema["$defs"].items()
        for name, field in body["properties"].items()
        if not field.keys() & {"description", "$ref", "const"}  # const: the name of a method, which has a title
    ]
    assert silent == []


def test_alpha_and_total_coefficient_say_the_same_thing_in_their_own_units():
    paper = parse_spec({"method": {"reg": {"coefficient": 0.1, "scale": "n_minus_1"}}})
    total = parse_spec({"method": {"reg": {"coefficient": 270.7, "scale": "one"}}})
    assert paper.method.reg.total(2708) == pytest.approx(total.method.reg.total(2708))
    with pytest.raises(InvalidInput, match="scale=one"):
        parse_spec({"method": {"reg": {"coefficient": 270.7, "scale": "n_minus_1"}}})


def test_hash_names_what_is_trained_and_ignores_book_keeping():
    base = spec_hash(TrainSpec())
    assert spec_hash(parse_spec({"run": {"checkpoint_every": 3, "name": "mine"}})) == base
    assert spec_hash(parse_spec({"optimiser": {"lr": 0.0005}})) == base  # the default, written out
    assert spec_hash(parse_spec({"run": {"seed": 1}})) != base
    assert spec_hash(parse_spec(json.loads(TrainSpec().model_dump_json()))) == base
    assert spec_hash(parse_spec({"evaluation": {"watch_every": 5}, "run": {"export": False}})) == base


def test_hash_speaks_of_held_out_edges_only_where_there_are_any():
    base = spec_hash(TrainSpec())
    assert spec_hash(parse_spec({"data": {"held_out_seed": 3}})) == base
    held = [{"held_out_edges": 0.1}, {"held_out_edges": 0.2}, {"held_out_edges": 0.1, "held_out_seed": 3}]
    assert len({base, *(spec_hash(parse_spec({"data": data})) for data in held)}) == 4


def test_specs_do_not_change():
    with pytest.raises(ValidationError):
        TrainSpec().run.seed = 5


@given(st.floats(1e-6, 1, allow_subnormal=False), st.integers(0, 2**31 - 1))
def test_overrides_read_numbers_as_written(lr, seed):
    spec = parse_spec(apply_overrides({}, [f"optimiser.lr={lr!r}", f"run.seed={seed}"]))
    assert spec.optimiser.lr == lr
    assert spec.run.seed == seed


@pytest.mark.parametrize("item", ["lr", "=3", ".lr=3", "optimiser..lr=3"])
def test_malformed_overrides_are_refused(item):
    with pytest.raises(InvalidInput, match=r"section\.key=value"):
        apply_overrides({}, [item])


def test_an_override_cannot_walk_through_a_value():
    with pytest.raises(InvalidInput, match="not a section"):
        apply_overrides({"method": "nml"}, ["method.x=1"])


def test_json_and_yaml_are_read_and_nothing_else(tmp_path):
    (tmp_path / "a.json").write_text('{"run": {"seed": 4}}')
    (tmp_path / "a.yaml").write_text("run:\n  seed: 4\n")
    assert parse_spec(read_document(tmp_path / "a.json")) == parse_spec(read_document(tmp_path / "a.yaml"))
    (tmp_path / "evil.yaml").write_text("!!python/object/apply:os.getcwd []\n")
    with pytest.raises(InvalidInput, match="not valid"):
        read_document(tmp_path / "evil.yaml")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput):
        read_document(tmp_path / "binary.json")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_document(tmp_path / "missing.json")


@pytest.mark.parametrize("dataset", PUBLISHED)
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_for_the_six_data_sets(preset, dataset):
    spec = preset_spec(preset, dataset)
    assert (spec.preset, spec.data.name) == (preset, dataset)


def test_official_preset_is_the_published_table():
    cora, wikics = preset_spec("nml-official", "cora"), preset_spec("nml-official", "wikics")
    assert (cora.optimiser.lr, cora.optimiser.weight_decay, cora.optimiser.epochs) == (5e-4, 1e-3, 200)
    assert (cora.method.temperature, cora.method.inner_steps) == (0.8, 2)
    assert cora.method.reg.total(2708) == pytest.approx(0.1 * 2707)
    assert (cora.method.metric.kind, cora.method.metric.learn_scale, cora.method.metric.input) == (
        "siamese_cos",
        False,
        "raw",
    )
    assert cora.method.metric_weight_decay == cora.optimiser.weight_decay
    assert wikics.augment.edge_drop == (0.2, 0.2)


def test_official_preset_does_not_invent_settings():
    with pytest.raises(InvalidInput, match="no published settings for digits"):
        preset_document("nml-official", "digits")
    with pytest.raises(InvalidInput, match="there is no preset"):
        preset_document("best", "cora")
