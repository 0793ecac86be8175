"""Importing by name: every kind of source, refusals that leave nothing, kills, and the memory it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.data import store
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.importing.graph import import_graph
from trainer.data.sources import npz, tables
from trainer.errors import Infrastructure, InvalidInput
from trainer.spec.data import DataSpec, FilesSpec, SyntheticSpec

NODES = "id,label,f1,f2\na,cat,1,2.5\nb,,3,4\nc,dog,5,6\n"
EDGES = "source,target\na,b\nc,b\n"


@pytest.fixture
def files(tmp_path: Path) -> DataSpec:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    return DataSpec(name="files", files=FilesSpec(nodes=str(tmp_path / "nodes.csv"), edges=str(tmp_path / "edges.csv")))


def imported(name: str, home: Path) -> Graph:
    return load(DataSpec(name="imported", imported=name), home=home)


def visible(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "graphs").iterdir() if not path.name.endswith(".lock"))


def test_every_kind_of_source_can_be_imported(tmp_path: Path, files: DataSpec, same_graph):
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(3), ids=["x", "y", "z"])
    npz_files = FilesSpec(npz=str(tmp_path / "g.npz"))
    sources = {
        "tables": (files, tables.load(files.files)),
        "npz": (DataSpec(name="files", files=npz_files), npz.load(npz_files)),
        "digits": (DataSpec(name="digits"), load(DataSpec(name="digits"))),
        "made": (DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=50)), None),
    }
    for name, (spec, expected) in sources.items():
        assert import_graph(spec, name, home=tmp_path) == tmp_path / "graphs" / name
        graph = imported(name, tmp_path)
        assert graph.name == name
        same_graph(graph, load(spec) if expected is None else expected)
        store.verify(tmp_path / "graphs" / name)
    copied = import_graph(DataSpec(name="imported", imported="made"), "copy", home=tmp_path)
    same_graph(Graph.open(copied), imported("made", tmp_path))
    assert visible(tmp_path) == ["copy", "digits", "made", "npz", "tables"]


def test_features_are_prepared_on_loading_and_not_before(tmp_path: Path, files: DataSpec):
    with pytest.raises(InvalidInput, match=r"set data.features in the spec of the run"):
        import_graph(files.model_copy(update={"features": "rownorm"}), "g", home=tmp_path)
    import_graph(files, "g", home=tmp_path)
    raw = imported("g", tmp_path)
    prepared = load(DataSpec(name="imported", imported="g", features="rownorm"), home=tmp_path)
    assert prepared.x.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert prepared.fingerprint() != raw.fingerprint()  # not the one that is stored for the raw features


def test_a_name_is_taken_once_and_replaced_on_request(tmp_path: Path, files: DataSpec):
    import_graph(DataSpec(name="digits"), "g", home=tmp_path)
    for spec in (files, DataSpec(name="digits")):
        with pytest.raises(InvalidInput, match=r"already imported .* Use --replace"):
            import_graph(spec, "g", home=tmp_path)
    import_graph(files, "g", home=tmp_path, replace=True)
    assert imported("g", tmp_path).num_nodes == 3
    (tmp_path / "edges.csv").write_text("source,target\na,nobody\n")
    with pytest.raises(InvalidInput, match=r"edges.csv, row 2"):
        import_graph(files, "g", home=tmp_path, replace=True)
    assert imported("g", tmp_path).num_edges == 4  # the old one still stands
    assert visible(tmp_path) == ["g"]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 101])
def test_names_that_could_be_paths_are_refused(tmp_path: Path, files: DataSpec, name: str):
    with pytest.raises(InvalidInput, match="cannot name a graph"):
        import_graph(files, name, home=tmp_path)
    assert not (tmp_path / "graphs").exists()


def test_a_full_disk_is_the_machines_failure_and_leaves_nothing(tmp_path: Path, files: DataSpec, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.data.importing.graph.spread_edges", full)
    with pytest.raises(Infrastructure, match=r"g was not imported: .*No space left"):
        import_graph(files, "g", home=tmp_path)
    assert visible(tmp_path) == []


def test_progress_goes_from_nodes_to_checksums(tmp_path: Path, files: DataSpec):
    told: list[str] = []
    import_graph(files, "g", home=tmp_path, progress=lambda what, share: told.append(what.split()[0]))
    assert list(dict.fromkeys(told)) == ["nodes", "edges", "sorting", "fingerprint", "checksum"]


SLOW_IMPORT = """
import sys, time
from pathlib import Path
from trainer.spec.data import DataSpec, FilesSpec
from trainer.data.importing.graph import import_graph
def progress(what, share):
    if what == sys.argv[3]:
        print("there", flush=True)
        time.sleep(60)
files = FilesSpec(nodes=sys.argv[1] + "/nodes.csv", edges=sys.argv[1] + "/edges.csv")
import_graph(DataSpec(name="files", files=files), "g", home=Path(sys.argv[2]), progress=progress)
"""


@pytest.mark.parametrize("step", ["nodes", "sorting edges", "fingerprint"])
def test_a_killed_import_leaves_no_graph_and_the_next_clears_up(
    tmp_path: Path, files: DataSpec, repo_root: Path, step: str
):
    home = tmp_path / "home"
    command = [sys.executable, "-c", SLOW_IMPORT, str(tmp_path), str(home), step]
    with subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        with pytest.raises(Infrastructure, match="being written by another process"):
            import_graph(files, "g", home=home)
        process.send_signal(signal.SIGKILL)
    with pytest.raises(InvalidInput, match="no imported graph"):
        imported("g", home)
    assert len(visible(home)) == 1  # what is left of it, under a hidden name
    import_graph(files, "g", home=home)
    assert visible(home) == ["g"]
    store.verify(home / "graphs" / "g")


MEASURED_IMPORT = """
import json, sys, time
from pathlib import Path
from trainer.spec.data import DataSpec, FilesSpec
from trainer.data.importing.graph import import_graph

def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) * 1024

def run(folder, name):
    kind = sys.argv[3]
    files = FilesSpec(nodes=f"{folder}/nodes.{kind}", edges=f"{folder}/edges.{kind}")
    import_graph(DataSpec(name="files", files=files), name, home=Path(sys.argv[2]), memory=int(sys.argv[4]))

run(sys.argv[1] + "/small", "warm")  # code and pools that the first import loads are no matter of size
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # getrusage's peak would count what the parent had before exec
run(sys.argv[1], "large")
print(json.dumps({"growth": status("VmHWM") - before}))
"""


def write_tables(folder: Path, kind: str, *, nodes: int, edges: int, features: int) -> int:
    """Random tables, written a piece at a time; returns their size."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    names = np.char.add("paper-", (np.arange(nodes) * 2_654_435_761 % 2**32).astype(str))

    def node_rows(start: int, stop: int) -> dict[str, object]:
        values = {f"f{j}": rng.random(stop - start, dtype=np.float32) for j in range(features)}
        return {"id": names[start:stop], "label": rng.integers(0, 40, stop - start)} | values

    def edge_rows(start: int, stop: int) -> dict[str, object]:
        ends = {
            "source": rng.integers(0, nodes, stop - start),
            "target": (nodes * rng.random(stop - start) ** 3).astype(int),
        }
        return {key: names[end] for key, end in ends.items()} | {"weight": rng.random(stop - start)}

    for name, total, rows in (("nodes", nodes, node_rows), ("edges", edges, edge_rows)):
        writer = None
        for start in range(0, total, 100_000):
            table = pa.table(rows(start, min(total, start + 100_000)))
            if writer is None:
                make = pacsv.CSVWriter if kind == "csv" else pq.ParquetWriter
                writer = make(folder / f"{name}.{kind}", table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
    return sum(path.stat().st_size for path in folder.glob(f"*.{kind}"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_several_times_larger_than_the_budget_stay_within_it(tmp_path: Path, repo_root: Path, kind: str):
    memory, nodes = 64 << 20, 400_000
    size = write_tables(tmp_path / "tables", kind, nodes=nodes, edges=4_000_000, features=96)
    write_tables(tmp_path / "tables" / "small", kind, nodes=1_000, edges=2_000, features=96)
    allowed = memory + 40 * nodes
    assert size > 3 * allowed
    done = subprocess.run(
        [sys.executable, "-c", MEASURED_IMPORT, str(tmp_path / "tables"), str(tmp_path / "home"), kind, str(memory)],
        cwd=repo_root, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    growth = json.loads(done.stdout)["growth"]
    assert growth < allowed, f"{growth >> 20} MB"
    assert imported("large", tmp_path / "home").num_nodes == nodes
