"""The same words everywhere: --version, -h, names of data sets, resume, and own tables as options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.service.cli.commands import nml
from trainer.data.datasets import imported_directory

TABLES = {"nodes.csv": "id,name,f\na,Ann,1\nb,Bob,2\nc,Cid,3\n", "edges.csv": "source,target\na,b\n"}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name two tables; NML_HOME is a place of our own."""
    monkeypatch.setenv("NML_HOME", str(tmp_path / "home"))
    for name, content in TABLES.items():
        (tmp_path / name).write_text(content)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv")]


def shown(*arguments: str) -> dict:
    return json.loads(nml("train", *arguments, "--show-spec").stdout)


def test_version_and_short_help():
    assert nml("--version").stdout.startswith("nml ")
    for command in ([], ["train"], ["sweep"], ["sweep", "results"], ["datasets"], ["datasets", "import"], ["keys"]):
        assert nml(*command, "-h").stdout == nml(*command, "--help").stdout


def test_tables_are_named_by_options(tables: list[str]):
    spec = shown(*tables, "--ignore", "name", "--ignore", "x", "--features", "f")
    files = spec["data"]["files"]
    assert (files["nodes"], files["edges"]) == (tables[1], tables[3])
    assert (files["ignore_columns"], files["feature_columns"]) == (["name", "x"], ["f"])
    assert "--nodes and --edges" in nml("train", *tables[:2], code=3).stderr
    assert "--nodes and --edges" in nml("train", *tables, "--dataset", "cora", code=3).stderr


def test_an_imported_graph_is_trained_by_its_name_until_it_is_removed(tables: list[str], tmp_path: Path):
    assert "nml train --dataset mine" in nml("datasets", "import", "mine", *tables, "--ignore", "name").stdout
    assert shown("--dataset", "mine")["data"]["imported"] == "mine"
    assert "is removed" in nml("datasets", "remove", "mine").stderr
    assert not imported_directory("mine", tmp_path / "home").exists()
    assert "no imported graph" in nml("datasets", "remove", "mine", code=3).stderr
    assert "data.name" in nml("train", "--dataset", "mine", code=3).stderr


def test_resume_needs_no_spec(tables: list[str], tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "spec.json").write_text(json.dumps(shown(*tables, "--ignore", "name", "--epochs", "3")))
    assert shown("--resume", "--out", str(run)) == json.loads((run / "spec.json").read_text())
