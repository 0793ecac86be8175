"""kill -9 of an import, a publication and the building of an index before each change of the file system, and again.

Whatever the moment: nothing half done is taken for done, the next attempt makes the same files and leaves no others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.service.datasets.forms import EDGES, NODES
from tests.service.embeddings.tables import VERSION, make_export, publish

ROOT = Path(__file__).resolve().parents[2]
REF, UPLOAD = "papers.0123456789ab", "a" * 32
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# An audit hook sees each change of the file system just before it is made. The libraries are loaded once, then forked.
DRIVER = """
import hashlib, importlib, json, os, shutil, signal, sys
from pathlib import Path
module, home, preload = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
for name in preload:
    importlib.import_module(name)
main = importlib.import_module(module).main
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree", "fcntl.flock"}

def attempt(place, kill_at):
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status)
    seen = [0]
    def hook(event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or (writes and str(arguments[0]).startswith(str(place))):
            seen[0] += 1
            if seen[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    os.environ["NML_HOME"] = str(place)
    os.dup2(os.open(place.with_name("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    if kill_at:
        sys.addaudithook(hook)
    try:
        os._exit(main([str(place / "order.json")]))
    finally:
        os._exit(99)

def files(place):
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(place.rglob("*")) if path.is_file() and not path.name.endswith(".lock")}

def fresh(name):
    place = home.with_name(name)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(home, place)
    return place

reference = fresh("reference")
assert attempt(reference, None) == 0
kills, found = 0, []
while True:
    place = fresh("killed")
    code = attempt(place, kills + 1)
    if code == 0:
        break
    kills += 1
    again = attempt(place, None)
    found.append({"kill": kills, "code": code, "again": again, "files": files(place)})
print(json.dumps({"reference": files(reference), "kills": found}))
"""


def killed_everywhere(module: str, home: Path, order: dict, *preload: str) -> tuple[dict[str, str], list[dict]]:
    (home / "order.json").write_text(json.dumps(order))
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, module, str(home), ",".join(preload)], cwd=ROOT, text=True, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, timeout=500,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3_000:]
    found = json.loads(ended.stdout)
    return found["reference"], found["kills"]


def check(reference: dict[str, str], kills: list[dict], *, least: int, differs: tuple[str, ...] = ()) -> None:
    """Each second attempt succeeded and left what one that was not killed leaves: no more, no less, the same bytes."""
    assert len(kills) >= least
    for one in kills:
        assert (one["code"], one["again"]) == (-9, 0), one["kill"]
        assert one["files"].keys() == reference.keys(), one["kill"]
        for name, digest in reference.items():
            assert name.endswith(differs or "\0") or one["files"][name] == digest, (one["kill"], name)


def test_an_import(tmp_path):
    home = tmp_path / "home"
    (home / "uploads" / UPLOAD).mkdir(parents=True)
    (home / "uploads" / UPLOAD / "nodes.csv").write_text(NODES)
    (home / "uploads" / UPLOAD / "edges.csv").write_text(EDGES)
    order = {"ref": REF, "upload": UPLOAD, "parts": {"nodes": "nodes.csv", "edges": "edges.csv"}}
    preload = "trainer.data.importing.graph", "trainer.data.importing.about", "trainer.data.store"
    reference, kills = killed_everywhere("trainer.data.importing.__main__", home, order, *preload)
    assert f"graphs/{REF}/about.json" in reference
    check(reference, kills, least=10)


def test_a_publication(tmp_path):
    home = tmp_path / "home"
    make_export(home / "runs" / VERSION, 50, 4, "str", labels=3)
    order = {"do": "publish", "version": VERSION}
    reference, kills = killed_everywhere("service.embeddings.__main__", home, order, "service.embeddings.publish")
    assert any(name.startswith(f"embeddings/{VERSION}/") for name in reference)
    check(reference, kills, least=10)


def test_an_index(tmp_path):
    home = tmp_path / "home"
    export = make_export(home / "runs" / VERSION, 300, 8, "str")
    assert np.load(export / "embeddings" / "vectors.npy").shape == (300, 8)
    publish(export, home)
    order = {"do": "index", "version": VERSION, "kind": "hnsw"}
    reference, kills = killed_everywhere("service.embeddings.__main__", home, order, "service.embeddings.approximate")
    assert any("hnsw" in name for name in reference)
    check(reference, kills, least=3, differs=(".json",))  # its document says how long it took
