"""How a document that says little becomes one that says all, and what is refused on the way."""

from __future__ import annotations

import json

import pytest

from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.presets import complete, merged, preset_document, preset_spec
from trainer.run.directory import RunDirectory, read_spec
from trainer.spec.data import FilesSpec


def test_nothing_becomes_nml_on_digits():
    assert parse_spec(complete({})) == preset_spec("nml", "digits")


def test_a_method_is_completed_by_the_preset_of_its_name():
    for method in ("untrained", {"name": "untrained"}):
        spec = parse_spec(complete({"method": method, "data": {"name": "cora"}}))
        assert (spec.method.name, spec.preset, spec.optimiser.epochs) == ("untrained", "untrained", 1)


def test_what_a_document_says_holds_and_the_rest_is_that_of_its_preset():
    given = {"preset": "nml-official", "data": {"name": "cora"}, "method": {"metric": {"hidden": 64}},
             "optimiser": {"lr": 0.1}}  # fmt: skip
    spec, preset = parse_spec(complete(given)), preset_spec("nml-official", "cora")
    assert spec.method.metric == preset.method.metric.model_copy(update={"hidden": 64})
    assert spec.method.reg == preset.method.reg
    assert spec.optimiser == preset.optimiser.model_copy(update={"lr": 0.1})
    assert (spec.encoder, spec.augment) == (preset.encoder, preset.augment)


def test_settings_without_a_name_are_completed_as_nml():
    spec = parse_spec(complete({"method": {"temperature": 0.3}, "data": {"name": "cora"}}))
    assert (spec.method.name, spec.method.temperature, spec.method.inner_steps) == ("nml", 0.3, 2)


def test_with_a_preset_of_null_a_document_stays_as_it_is():
    given = {"preset": None, "data": {"name": "cora"}}
    assert complete(given) == given
    assert parse_spec(complete(given)).optimiser == TrainSpec().optimiser


def test_completing_twice_changes_nothing_and_leaves_what_it_was_given():
    given = {"method": "nml", "preset": "nml-official", "data": {"name": "cora"}, "optimiser": {"epochs": 3}}
    before = json.loads(json.dumps(given))
    once = complete(given)
    assert given == before
    assert complete(once) == once


@pytest.mark.parametrize("method", ["untrained", {"name": "untrained"}])
def test_a_preset_of_another_method_is_refused_with_both_names(method):
    with pytest.raises(InvalidInput, match="preset nml-official is of method nml, and method is untrained"):
        complete({"preset": "nml-official", "method": method, "data": {"name": "cora"}})


def test_presets_that_do_not_exist_or_do_not_know_the_data_set_are_refused():
    with pytest.raises(InvalidInput, match=r"there is no preset 'best'.*nml-official"):
        complete({"preset": "best"})
    with pytest.raises(InvalidInput, match="no published settings for digits"):
        complete({"preset": "nml-official"})


@pytest.mark.parametrize(
    "given",
    [{"method": "grce"}, {"method": {"name": "grce"}}, {"data": "cora"}, {"data": {"name": 3}}, {"preset": 5}],
)
def test_what_cannot_be_completed_is_left_to_validation(given):
    assert complete(given) == given
    with pytest.raises(InvalidInput):
        parse_spec(complete(given))


@pytest.mark.parametrize("method", [None, 5, [], {"name": 5}])
def test_a_method_that_is_none_is_refused_by_validation_and_does_not_break_completing(method):
    with pytest.raises(InvalidInput, match="method"):
        parse_spec(complete({"method": method}))


def test_merging_goes_key_by_key_and_replaces_whatever_is_no_section():
    under = {"a": {"x": 1, "y": {"p": 1, "q": 2}}, "b": [1, 2], "c": {"z": 1}, "d": 4}
    over = {"a": {"y": {"q": 3}}, "b": [9], "c": None, "e": {"new": 1}}
    assert merged(under, over) == {"a": {"x": 1, "y": {"p": 1, "q": 3}}, "b": [9], "c": None, "d": 4, "e": {"new": 1}}
    assert under["a"] == {"x": 1, "y": {"p": 1, "q": 2}}
    assert over["a"] == {"y": {"q": 3}}


def test_a_preset_document_names_its_method_and_data_set():
    document = preset_document("nml-official", "cora")
    assert (document["preset"], document["data"], document["method"]["name"]) == (
        "nml-official", {"name": "cora"}, "nml",
    )  # fmt: skip


@pytest.mark.parametrize(
    "section, word",
    [({"objective": {"temperature": 0.5}}, r"method\.temperature"), ({"metric": {"hidden": 8}}, r"method\.metric")],
)
def test_sections_of_earlier_releases_are_refused_with_the_word_where_to_put_them(section, word):
    (name,) = section
    for document in (section, complete(section)):
        with pytest.raises(InvalidInput, match=rf"{name}: there is no such section any more; .*`method`.*{word}"):
            parse_spec(document)


def test_a_run_directory_of_an_earlier_release_is_refused_on_resume_and_left_as_it_was(tmp_path):
    old = TrainSpec().model_dump(mode="json") | {"method": "nml", "objective": {"temperature": 0.5}, "metric": {}}
    (tmp_path / "spec.json").write_text(json.dumps(old))
    before = (tmp_path / "spec.json").read_bytes()
    with pytest.raises(InvalidInput, match="run directory of an earlier release cannot go on; train it again"):
        RunDirectory.open(tmp_path, TrainSpec(), resume=True)
    with pytest.raises(InvalidInput, match="earlier release"):
        read_spec(tmp_path)
    assert (tmp_path / "spec.json").read_bytes() == before
    assert not (tmp_path / "checkpoints").exists()


OWN = {"nodes": "nodes.csv", "edges": "edges.csv"}


@pytest.mark.parametrize("files", [OWN, FilesSpec(**OWN)])
def test_a_preset_can_be_had_for_own_files(files):
    spec = preset_spec("nml", files)
    assert (spec.data.name, spec.data.files, spec.preset) == ("files", FilesSpec(**OWN), "nml")


def test_settings_of_a_paper_can_be_had_for_own_files():
    paper = preset_spec("nml-official", "cora")
    own = paper.with_(data={"name": "files", "files": OWN})
    assert own.data.files == FilesSpec(**OWN)
    assert own.model_copy(update={"data": paper.data}) == paper


def test_fields_are_changed_by_section_and_by_dotted_path():
    spec = preset_spec("nml", "cora")
    changed = spec.with_({"optimiser.epochs": 3, "method.metric.hidden": 64}, optimiser={"lr": 0.1}, run={"seed": 5})
    assert changed.optimiser == spec.optimiser.model_copy(update={"epochs": 3, "lr": 0.1})
    assert changed.method.metric == spec.method.metric.model_copy(update={"hidden": 64})
    assert (changed.run.seed, changed.preset, changed.data) == (5, "nml", spec.data)
    assert spec.with_() == spec


@pytest.mark.parametrize("method", ["grace", {"name": "grace"}])
def test_another_method_comes_with_its_own_settings_and_no_preset(method):
    spec = preset_spec("nml", "cora").with_(method=method)
    assert (spec.method, spec.preset) == (parse_spec({"method": "grace"}).method, None)


def test_another_data_set_keeps_how_features_are_prepared():
    spec = parse_spec({"data": {"name": "synthetic", "synthetic": {"nodes": 50}, "features": "zscore"}})
    other = spec.with_({"data.name": "cora"}).data
    assert (other.name, other.features, other.synthetic) == ("cora", "zscore", None)


@pytest.mark.parametrize(
    "change, said",
    [({"optimiser.epoch": 3}, "optimiser.epoch: unknown key"), ({"method.temperature": 0}, "method.temperature"),
     ({"run.seed.x": 1}, "run.seed"), ({"optimizer": {}}, "optimizer: unknown key")],
)  # fmt: skip
def test_wrong_changes_are_refused_by_field(change, said):
    with pytest.raises(InvalidInput, match=said):
        preset_spec("nml", "cora").with_(change)


def test_tables_take_the_place_of_an_npz_and_the_other_way_round():
    npz = TrainSpec().with_(data={"name": "files", "files": {"npz": "graph.npz", "directed": True}})
    tables = npz.with_(data={"name": "files", "files": OWN})
    assert (tables.data.files.npz, tables.data.files.nodes) == (None, OWN["nodes"])
    assert tables.with_({"data.files.npz": "other.npz"}).data.files.nodes is None
    assert npz.with_({"data.files.npz": "other.npz"}).data.files.directed
