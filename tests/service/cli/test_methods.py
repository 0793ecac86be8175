"""`nml methods` and `--method`: what a newcomer sees of the methods, and how one is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.cli.spec_options import Asked, assemble
from service.cli.sweep_spec import assemble_sweep
from trainer.errors import InvalidInput
from trainer.methods import BY_NAME
from trainer.presets import preset_spec


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["methods", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_list_has_every_method_and_what_it_can_do() -> None:
    listed = {entry["name"]: entry for entry in json.loads(shown("--json"))}
    assert list(listed) == list(BY_NAME)
    assert listed["nml"]["workers"]
    assert listed["nml"]["sweeps"]
    assert "bank" in listed["nml"]["scopes"]
    assert not listed["untrained"]["sweeps"]
    assert listed["untrained"]["scopes"] == ["whole"]
    assert all(name in shown() for name in BY_NAME)


@pytest.mark.parametrize("name", BY_NAME)
def test_settings_of_each_method_are_shown_with_defaults(name: str) -> None:
    found = json.loads(shown(name, "--json"))["settings"]
    fields = set(BY_NAME[name].model_fields) - {"name"}
    assert {path.split(".")[1] for path in found} == fields
    assert all(path in shown(name) for path in found)


def test_bounds_and_preset_are_told() -> None:
    found = json.loads(shown("nml", "--dataset", "cora", "--json"))
    assert found["settings"]["method.temperature"]["exclusiveMinimum"] == 0.025
    assert found["settings"]["method.metric.hidden"]["default"] == 512
    assert found["preset"]["method"]["temperature"] == 0.8


def test_unknown_method_is_refused_with_the_list() -> None:
    done = CliRunner().invoke(app, ["methods", "unheard-of"])
    assert isinstance(done.exception, InvalidInput)
    assert all(name in str(done.exception) for name in BY_NAME)


def test_method_alone_means_its_preset_for_the_data_set(tmp_path: Path) -> None:
    expected = preset_spec("untrained", "cora")
    assert assemble(Asked(dataset="cora", method="untrained")) == expected
    assert assemble(Asked(dataset="cora", overrides=["method=untrained"])) == expected
    (tmp_path / "spec.yaml").write_text("method: untrained\ndata: {name: cora}\n")
    assert assemble(Asked(tmp_path / "spec.yaml")) == expected


def test_set_reaches_into_a_method_that_a_file_only_names(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("method: nml\ndata: {name: cora}\n")
    spec = assemble(Asked(tmp_path / "spec.yaml", overrides=["method.temperature=0.4"]))
    assert spec.model_dump()["method"]["temperature"] == 0.4
    assert spec.model_dump()["method"]["inner_steps"] == 2  # the preset's for cora


@pytest.mark.parametrize(
    "asked, says",
    [
        (Asked(method="unheard-of"), "method: unknown method .*nml, .*untrained"),
        (Asked(overrides=["method.heat=1"]), "method.heat: unknown key; nml has temperature"),
        (Asked(method="untrained", preset="nml"), "preset nml is of method nml"),
        (Asked(overrides=["objective.temperature=0.4"]), "objective: .*method"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_options(asked: Asked, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        assemble(asked)


def test_base_of_a_sweep_is_completed_like_any_spec(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("base: {method: nml, data: {name: cora}}\n")
    spec = assemble_sweep(Asked(tmp_path / "sweep.yaml", overrides=["method.temperature=0.4"]), {"trials": 2})
    expected = preset_spec("nml", "cora").model_dump()
    expected["method"]["temperature"] = 0.4
    assert spec.base.model_dump() == expected
    with pytest.raises(InvalidInput, match="learns nothing"):
        assemble_sweep(Asked(method="untrained"), {})
