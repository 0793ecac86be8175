"""`nml datasets`: list, import and verify, as people and scripts use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.service.terminal import shown_on_terminal

NODES = "key,label,f1,f2\na,cat,1,2.5\nb,,3,4\nc,dog,5,6\n"
EDGES = "source,target\na,b\nc,b\nc,c\n"
COMMAND = [sys.executable, "-c", "from service.cli import main; main()", "datasets"]


@pytest.fixture
def nml(tmp_path: Path):
    """Runs `nml datasets ...` with a home of its own."""
    environment = {**os.environ, "NML_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str, code: int = 0):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    own_ids = ["--set", "data.files.id_column=key"]
    return ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv"), *own_ids]


def test_imported_tables_are_listed_verified_and_ready_to_train_on(tmp_path: Path, nml, tables):
    done = nml("import", "my-graph", *tables)
    assert "removed 1 self loop" in done.stdout
    assert "nml train --dataset my-graph" in done.stdout
    assert done.stderr == ""  # no bar in a pipe
    entry = next(entry for entry in json.loads(nml("--json").stdout) if entry["kind"] == "imported")
    assert entry == {
        "name": "my-graph", "kind": "imported", "nodes": 3, "edges": 4, "features": 2, "classes": 2, "offline": True,
    }  # fmt: skip
    assert "my-graph" in nml().stdout
    assert "every file is what was written" in nml("verify", "my-graph").stdout

    file = tmp_path / "home" / "graphs" / "my-graph" / "x.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "x.npy: damaged" in nml("verify", "my-graph", code=3).stderr


def test_what_was_written_is_told_as_json(tmp_path: Path, nml):
    np.savez(tmp_path / "g.npz", edge_index=[[0], [1]], x=np.eye(3), y=[0, 1, 1])
    written = json.loads(nml("import", "g", "--npz", str(tmp_path / "g.npz"), "--json").stdout)
    assert written["directory"] == str(tmp_path / "home" / "graphs" / "g")
    assert (written["num_nodes"], written["num_edges"], written["classes"]) == (3, 2, ["0", "1"])
    assert written["notes"] == ["kept 1 isolated node"]
    assert len(written["fingerprint"]) == 64
    stored = sum(path.stat().st_size for path in Path(written["directory"]).iterdir())
    assert written["bytes"] == stored


@pytest.mark.slow
def test_named_graphs_are_imported_with_their_settings_and_replaced_on_request(nml):
    options = ["import", "g", "--dataset", "synthetic", "--set", "data.synthetic.nodes=40", "--json"]
    assert json.loads(nml(*options).stdout)["num_nodes"] == 40
    assert "already imported" in nml(*options, code=3).stderr
    options[5] = "data.synthetic.nodes=50"
    assert json.loads(nml(*options, "--replace").stdout)["num_nodes"] == 50


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["import", "g"], 3, "give one source"),
        (["import", "g", "--npz", "a.npz", "--dataset", "digits"], 3, "give one source"),
        (["import", "g", "--nodes", "n.csv"], 3, "data.files: give either npz, or both nodes and edges"),
        (["import", "g", "--npz", "missing.npz"], 3, "missing.npz"),
        (["import", "g", "--dataset", "atlantis"], 3, "data.name"),
        (["import", "a/b", "--dataset", "digits"], 3, "cannot name a graph"),
        (["import", "g", "--dataset", "digits", "--set", "run.seed=1"], 3, "run: an import takes only fields of data"),
        (["import", "g", "--dataset", "digits", "--set", "data.features=zscore"], 3, "set data.features"),
        (["import", "g", "--dataset", "digits", "--memory", "3"], 2, "--memory"),
        (["verify", "nothing"], 3, 'no imported graph is called "nothing"'),
    ],
)
def test_mistakes_get_a_sentence_and_the_right_exit_code(nml, arguments, code, says):
    assert says in nml(*arguments, code=code).stderr


def test_a_terminal_sees_a_bar_for_each_step(tmp_path: Path, tables):
    shown = shown_on_terminal([*COMMAND, "import", "g", *tables], NML_HOME=str(tmp_path / "home"))
    for step in (b"nodes", b"edges", b"sorting", b"checksum", b"100%"):
        assert step in shown
