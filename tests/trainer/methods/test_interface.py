"""What every method promises the planner, the API and sweeps; a new one is held to it by its line in METHODS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.files.documents import value_at
from trainer.methods import BY_NAME, METHODS
from trainer.methods.interface import Scope, StepSize
from trainer.methods.nml import NegativeMetricLearning
from trainer.presets import complete, preset_spec
from trainer.spec.data import DatasetName
from tuner.space import check_dimension, default_space

DATA: dict[str, dict[str, Any]] = {
    "files": {"files": {"npz": "graph.npz"}}, "imported": {"imported": "mine"},
}  # fmt: skip
PLANNED = {
    "cached": {"negatives": "graph", "batch_size": 100},
    "batch": {"negatives": "batch", "batch_size": 100},
    "bank": {"negatives": "bank", "batch_size": 100},
}
SIZE = StepSize(
    nodes=1000, edges=5000, features=32, rows=1000, columns=1000, dim=64, number=4, parameters=10_000, tile=256, keep=0,
    scope="whole", workers=1, diagnoses=True,
)  # fmt: skip
every_method = pytest.mark.parametrize("name", BY_NAME)


def document(name: str, dataset: str, **sections: Any) -> dict[str, Any]:
    return complete({"method": name, "data": {"name": dataset, **DATA.get(dataset, {})}, **sections})


def test_names_are_distinct_and_each_is_a_preset_of_its_own():
    assert len(BY_NAME) == len(METHODS)
    for name, method in BY_NAME.items():
        assert name in method.presets()


def test_methods_are_read_without_torch():
    code = (
        "import sys, trainer.methods, trainer.presets, trainer.config\n"
        "from trainer.methods import BY_NAME\n"
        "for name in BY_NAME: trainer.presets.preset_document(name, 'cora')\n"
        "print(sorted({'torch', 'torch_geometric', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@every_method
def test_a_method_says_what_it_is(name):
    method = BY_NAME[name]
    for text in (method.title, method.paper, method.summary):
        assert text.strip() == text != ""
        assert "\n" not in text
    assert method.scopes
    assert set(method.scopes) <= set(get_args(Scope))
    assert len(set(method.scopes)) == len(method.scopes)


@every_method
@pytest.mark.parametrize("dataset", get_args(DatasetName))
def test_its_name_alone_is_a_valid_spec_on_every_data_set(name, dataset):
    spec = parse_spec(document(name, dataset))
    assert isinstance(spec.method, BY_NAME[name])
    assert (spec.preset, spec.data.name) == (name, dataset)


@pytest.mark.parametrize("name, preset", [(name, preset) for name in BY_NAME for preset in BY_NAME[name].presets()])
def test_presets_give_valid_settings_or_say_for_which_data_sets_they_have_some(name, preset):
    known = 0
    for dataset in get_args(DatasetName):
        try:
            BY_NAME[name].presets()[preset](dataset)
        except InvalidInput as error:
            assert preset in str(error)  # noqa: PT017
            assert dataset in str(error)  # noqa: PT017
            continue
        known += 1
        if dataset not in DATA:
            assert preset_spec(preset, dataset).method.name == name
    assert known


@every_method
@pytest.mark.parametrize("dataset", ["digits", "cora"])
def test_its_default_search_space_is_made_of_valid_fields(name, dataset):
    base = parse_spec(document(name, dataset))
    space = default_space(base)
    assert bool(space) == base.method.learns
    for path, dimension in space.items():
        check_dimension(base, path, dimension)


@every_method
@pytest.mark.parametrize("dataset", get_args(DatasetName))
def test_published_settings_are_fields_of_the_spec_and_of_its_space(name, dataset):
    base = parse_spec(document(name, dataset))
    published = base.method.published(dataset, 1_000)
    for path in published:
        value_at(base.model_dump(mode="json"), path)
    assert published.keys() <= base.method.space().keys()


@every_method
@pytest.mark.parametrize("scope", PLANNED)
def test_scopes_it_does_not_know_are_refused_with_those_it_does(name, scope):
    given = document(name, "synthetic", sampling=PLANNED[scope])
    if scope in BY_NAME[name].scopes:
        assert parse_spec(given).method.name == name
        return
    with pytest.raises(
        InvalidInput, match=rf"{name} cannot be trained with .*it knows: .*sampling\.negatives"
    ) as caught:
        parse_spec(given)
    for known in BY_NAME[name].scopes:
        assert known in str(caught.value)


@every_method
def test_several_workers_are_refused_where_it_trains_in_one_process(name):
    given = document(name, "synthetic", run={"workers": 2}, encoder={"norm": "none"})
    if BY_NAME[name].teams:
        assert parse_spec(given).run.workers == 2
        return
    with pytest.raises(InvalidInput, match=rf"{name} trains in one process; set run\.workers to 1"):
        parse_spec(given)


@every_method
def test_unknown_settings_are_refused_by_the_path_people_write(name):
    given = document(name, "synthetic")
    given["method"] = {**given["method"], "temprature": 0.5}
    with pytest.raises(InvalidInput, match=r"(?m)^method\.temprature: unknown key"):
        parse_spec(given)


def test_an_unknown_method_is_refused_with_the_names_there_are():
    for given in ("grce", {"name": "grce"}):
        with pytest.raises(InvalidInput, match=r"(?m)^method: ") as caught:
            parse_spec({"method": given})
        for name in BY_NAME:
            assert name in str(caught.value)


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


@pytest.mark.parametrize("method", METHODS)
def test_its_json_schema_is_closed(method):
    found = list(objects(method.model_json_schema()))
    assert found
    assert all(part.get("additionalProperties") is False for part in found)


def test_the_schema_of_a_spec_takes_a_name_or_settings_of_every_method():
    schema = TrainSpec.model_json_schema()
    assert all(part.get("additionalProperties") is False for part in objects(schema))
    by_name, by_settings = schema["properties"]["method"]["anyOf"]
    assert set(by_name.get("enum", [by_name.get("const")])) == set(BY_NAME)
    assert set(by_settings["discriminator"]["mapping"]) == set(BY_NAME)


def test_a_name_stands_for_its_defaults_and_no_name_for_nml():
    assert parse_spec({"method": "nml"}) == parse_spec({"method": {"name": "nml"}}) == parse_spec({"method": {}})
    given = parse_spec({"method": {"temperature": 0.3}})
    assert given.method == NegativeMetricLearning(temperature=0.3)
    assert parse_spec(given.model_dump(mode="json")) == given


@every_method
def test_memory_is_told_in_bytes_that_do_not_shrink_as_the_graph_grows(name):
    method = parse_spec(document(name, "synthetic")).method
    for scope in method.scopes:
        small = StepSize(**{**vars(SIZE), "scope": scope})
        large = StepSize(**{**vars(small), "nodes": 4000, "edges": 20_000, "rows": 4000, "columns": 4000})
        for told in (method.parameters, method.state_bytes, method.step_bytes, method.tile_bytes):
            assert 0 <= told(small) <= told(large)
