"""`python -m trainer.data.importing SPEC.json`: the process that a service starts for an upload."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.data import store
from trainer.data.datasets import load
from trainer.data.importing.about import describe
from trainer.spec.data import DataSpec, FilesSpec

REF, UPLOAD = "papers.0123456789ab", "c0ffee"
NODES = "key,label,a,b\np,cat,1,0.5\nq,dog,2,0.25\nr,,3,4\n"
EDGES = "source,target\np,q\nq,r\n"


class Place:
    """A home with one upload in it."""

    def __init__(self, root: Path):
        self.home = root / "home"
        self.upload = self.home / "uploads" / UPLOAD
        self.graph = self.home / "graphs" / REF
        self.upload.mkdir(parents=True)
        self.spec_file = root / "spec.json"

    def put(self, nodes: str = NODES, edges: str = EDGES, **options: Any) -> FilesSpec:
        (self.upload / "nodes.csv").write_text(nodes)
        (self.upload / "edges.csv").write_text(edges)
        return self.order({"nodes": "nodes.csv", "edges": "edges.csv"}, {"id_column": "key"} | options)

    def order(self, parts: dict[str, str], options: dict[str, Any] | None = None) -> FilesSpec:
        document = {"ref": REF, "upload": UPLOAD, "parts": parts, "options": options or {}, "memory_mb": 64}
        self.spec_file.write_text(json.dumps(document))
        return FilesSpec(**{key: str(self.upload / name) for key, name in parts.items()}, **options or {})

    def start(self, *prefix: str) -> tuple[subprocess.Popen[str], int]:
        reading, writing = os.pipe()
        environment = {**os.environ, "NML_HOME": str(self.home), "NML_OUTCOME_FD": str(writing), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *(prefix or ("-m", "trainer.data.importing")), str(self.spec_file)]
        process = subprocess.Popen(command, env=environment, pass_fds=[writing], stderr=subprocess.PIPE, text=True)
        os.close(writing)
        return process, reading

    def run(self) -> tuple[int, dict[str, str]]:
        """Exit code, and what it reported."""
        process, reading = self.start()
        process.communicate()
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        return process.returncode, json.loads(said) if said else {}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_tables_become_a_graph_that_is_described_beside_its_manifest(place: Place, same_graph):
    files = place.put()
    assert place.run() == (0, {})
    expected = load(DataSpec(name="files", files=files))
    same_graph(load(DataSpec(name="imported", imported=REF), home=place.home), expected)
    store.verify(place.graph)  # the description does not disturb
    assert json.loads((place.graph / "about.json").read_text()) == describe(place.graph)


def test_an_npz_becomes_a_graph(place: Place, same_graph):
    np.savez(place.upload / "graph.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(3), ids=["a", "b", "c"], y=[0, 1, 0])
    files = place.order({"npz": "graph.npz"}, {"directed": True})
    assert place.run() == (0, {})
    same_graph(
        load(DataSpec(name="imported", imported=REF), home=place.home), load(DataSpec(name="files", files=files))
    )


def test_done_again_it_changes_nothing_and_needs_no_upload(place: Place):
    place.put()
    assert place.run() == (0, {})
    before = {path.name: path.stat().st_mtime_ns for path in place.graph.iterdir()}
    for path in place.upload.iterdir():
        path.unlink()
    place.upload.rmdir()
    assert place.run() == (0, {})
    assert {path.name: path.stat().st_mtime_ns for path in place.graph.iterdir()} == before
    (place.graph / "about.json").unlink()  # killed in between
    assert place.run() == (0, {})
    assert (place.graph / "about.json").exists()


# Waits to be killed where the nodes are written and the edges are not; it does not outlive the tests.
HELD = """
import os, sys, time
from trainer.data.importing import __main__ as importing
parent = os.getppid()
def tell(what, share):
    while what == "sorting edges" and os.getppid() == parent:
        time.sleep(0.05)
importing._tell = tell
sys.exit(importing.main())
"""


def test_killed_while_it_writes_it_can_be_run_again(place: Place):
    rows = range(3_000)
    nodes = "key,a\n" + "".join(f"n{row},{row}\n" for row in rows)
    edges = "source,target\n" + "".join(f"n{row},n{(row * 7 + 1) % len(rows)}\n" for row in rows)
    place.put(nodes, edges)
    process, reading = place.start("-c", HELD)
    while not list(place.home.glob("graphs/.*/ids.npy")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    os.close(reading)
    assert not place.graph.exists()
    assert place.run() == (0, {})
    store.verify(place.graph)
    assert json.loads((place.graph / "about.json").read_text())["nodes"] == len(rows)
    assert not [path for path in place.graph.parent.iterdir() if path.is_dir() and path.name.startswith(".")]


@pytest.mark.parametrize(
    "nodes, edges, options, says",
    [
        (NODES + "p,cat,1,1\n", EDGES, {}, 'nodes.csv, row 5: id "p" is already used in row 2'),
        (NODES, EDGES + "p,z\n", {}, 'edges.csv, row 4: node "z" is not in nodes.csv.'),
        (NODES, EDGES + "p,z\n", {}, "or set options.drop_unknown=true"),
        (NODES, EDGES, {"id_column": "doi"}, "Rename one, or set options.id_column."),
        (NODES, EDGES, {"separator": ";"}, "options: separator: unknown key"),
        (NODES, EDGES, {"directed": "perhaps"}, "options: directed: "),
    ],
)
def test_a_refusal_names_part_row_and_option_but_no_path(place: Place, nodes, edges, options, says):
    place.put(nodes, edges)
    order = json.loads(place.spec_file.read_text())
    place.spec_file.write_text(json.dumps(order | {"options": order["options"] | options}))
    code, said = place.run()
    assert (code, said["kind"]) == (3, "invalid")
    assert says in said["message"]
    assert str(place.home) not in said["message"]
    assert not place.graph.exists()


def test_a_bad_table_is_refused_before_torch_is_loaded(place: Place):
    place.put(NODES + "p,cat,1,1\n")
    code = (
        "import sys; from trainer.data.importing.__main__ import main; "
        "assert main(sys.argv[1:]) == 3; assert 'torch' not in sys.modules; assert 'scipy' not in sys.modules"
    )
    process, reading = place.start("-c", code)
    _, errors = process.communicate()
    os.close(reading)
    assert process.returncode == 0, errors


def test_good_tables_are_imported_without_torch(place: Place):
    place.put()
    code = (
        "import sys; from trainer.data.importing.__main__ import main; "
        "assert main(sys.argv[1:]) == 0; assert 'torch' not in sys.modules"
    )
    process, reading = place.start("-c", code)
    _, errors = process.communicate()
    os.close(reading)
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    "document, says",
    [
        ({"ref": "../../x"}, "ref"),
        ({"upload": "../../etc"}, "upload"),
        ({"parts": {"npz": "/etc/passwd"}}, "parts.npz"),
        ({"parts": {"nodes": "../nodes.csv", "edges": "edges.csv"}}, "parts.nodes"),
        ({"parts": {"nodes": "nodes.csv"}}, "give either npz, or both nodes and edges"),
        ({"more": 1}, "more: unknown key"),
        ({"upload": "0000"}, "the uploaded files are gone"),
    ],
)
def test_an_order_that_names_anything_else_is_refused(place: Place, document, says):
    place.put()
    order = json.loads(place.spec_file.read_text()) | document
    place.spec_file.write_text(json.dumps(order))
    code, said = place.run()
    assert (code, said["kind"]) == (3, "invalid")
    assert says in said["message"]


def test_no_place_to_write_is_not_the_uploads_fault(place: Place):
    place.put()
    (place.home / "graphs").symlink_to("/proc")  # where nobody can make a file
    code, said = place.run()
    assert (code, said["kind"]) == (5, "infra")
    assert str(place.home) not in said["message"]
