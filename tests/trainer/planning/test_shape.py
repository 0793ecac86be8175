"""How large a graph is, told without loading it; compared with the graph once it is loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from scipy.sparse import random as random_sparse

from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.sources.public import SETS
from trainer.errors import InvalidInput
from trainer.planning.shape import GraphShape, shape_of, shape_of_data
from trainer.spec.data import DataSpec

NODES, FEATURES = 60, 5


def counts(shape: GraphShape) -> tuple[int, int, int]:
    return shape.nodes, shape.edges, shape.features


def ring(nodes: int = NODES) -> np.ndarray:
    """An undirected edge from each node to the next, listed once."""
    return np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes])


def files(**names) -> DataSpec:
    return DataSpec(name="files", files={key: str(value) for key, value in names.items()})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nodes": 3_000, "degree": 3, "features": 500, "active_features": 30, "signal": 0.9, "classes": 2},
        {"nodes": 1_001, "degree": 25.5, "features": 40, "active_features": 40, "classes": 4},  # becomes dense
    ],
)
def test_a_generated_graph_is_as_large_as_its_settings_say(settings):
    data = DataSpec(name="synthetic", synthetic=settings)
    told, found = shape_of_data(data), shape_of(load(data))
    assert counts(told) == counts(found)
    assert told.classes == found.classes
    assert (told.nonzeros is None) == (found.nonzeros is None)
    if found.nonzeros is not None:
        assert told.nonzeros == pytest.approx(found.nonzeros, rel=0.02)
    assert told.loading > 0
    assert found.loading == 0


def test_the_built_in_graph_is_as_large_as_the_catalogue_says():
    data = DataSpec(name="digits")
    assert replace(shape_of_data(data), note="") == replace(shape_of(load(data)), note="")


@pytest.mark.parametrize("name", SETS)
def test_public_sets_are_known_without_their_files(name, tmp_path, monkeypatch):
    monkeypatch.delenv("NML_DATA", raising=False)
    told = shape_of_data(DataSpec(name=name), home=tmp_path)
    assert counts(told) == (SETS[name].nodes, SETS[name].edges, SETS[name].features)
    assert told.mapped
    assert told.loading > 4 * told.nodes * told.features  # PyG reads features dense, the first time
    assert not list(tmp_path.iterdir())


def held(name):
    """A set as a parameter, skipped with a reason where NML_DATA does not hold it."""
    source = Path(os.environ.get("NML_DATA", "$NML_DATA"), SETS[name].folder, "raw")
    missing = not all((source / file).is_file() for file in SETS[name].files)
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"{source} does not hold {name}"))


@pytest.mark.parametrize("name", [held("cora"), held("photo")])
def test_public_sets_are_as_large_as_told(name, tmp_path):
    found = shape_of(load(DataSpec(name=name), home=tmp_path))
    told = shape_of_data(DataSpec(name=name), home=tmp_path)  # converted now, so there is no first time any more
    assert replace(told, note="") == replace(found, note="")


def test_an_imported_graph_is_told_by_its_headers(tmp_path):
    x = np.ones((NODES, FEATURES), np.float32)
    weight = np.ones(NODES, np.float32)
    ids = [f"node {i}" for i in range(NODES)]
    graph = Graph.from_edges(ring(), x, ids=ids, weight=weight, y=np.arange(NODES) % 3)
    graph.save(tmp_path / "graphs" / "mine")
    told = shape_of_data(DataSpec(name="imported", imported="mine"), home=tmp_path)
    assert counts(told) == (NODES, 2 * NODES, FEATURES)
    assert (told.mapped, told.weighted, told.classes, told.nonzeros) == (True, True, 3, None)
    assert told.id_bytes == np.array(ids).itemsize
    assert shape_of_data(DataSpec(name="imported", imported="mine", features="zscore"), home=tmp_path).loading > 0
    with pytest.raises(InvalidInput, match="other"):
        shape_of_data(DataSpec(name="imported", imported="other"), home=tmp_path)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("ids", [None, range(100, 100 + NODES), [f"node {i}" for i in range(NODES)]])
def test_the_manifest_tells_what_the_opened_graph_would(tmp_path, weighted, sparse, ids):
    x = random_sparse(NODES, 50, density=0.1 if sparse else 0.9, format="csr", dtype=np.float32, random_state=0)
    weight = np.linspace(1, 2, NODES) if weighted else None
    graph = Graph.from_edges(ring(), x, ids=ids, weight=weight, y=np.arange(NODES) % 7, directed=True)
    graph.save(tmp_path / "graphs" / "mine.0123456789ab")
    data = DataSpec(name="imported", imported="mine.0123456789ab")
    told, found = shape_of_data(data, home=tmp_path), shape_of(load(data, home=tmp_path))
    assert (found.nonzeros is not None, found.weighted) == (sparse, weighted)
    assert replace(told, note="") == replace(found, note="")


def test_an_imported_graph_is_told_without_numpy_or_torch(tmp_path, repo_root):
    Graph.from_edges(ring(), np.eye(NODES)).save(tmp_path / "graphs" / "mine")
    code = (
        "import sys; from pathlib import Path; from trainer.config import DataSpec; "
        "from trainer.planning.shape import shape_of_data; "
        f"shape = shape_of_data(DataSpec(name='imported', imported='mine'), home=Path({str(tmp_path)!r})); "
        "print(shape.nodes, {'numpy', 'torch'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=False)
    assert run.stdout == f"{NODES} set()\n", run.stderr


def _shorten(directory: Path) -> None:
    path = directory / "x_values.npy"
    path.write_bytes(path.read_bytes()[:100])


def _write_manifest(directory: Path, **changes) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "damage, says",
    [
        (_shorten, "cut short"),
        (lambda place: (place / "ids.npy").unlink(), "not a saved graph"),
        (lambda place: (place / "manifest.json").write_text("{"), "not a saved graph"),
        (lambda place: _write_manifest(place, num_nodes="many"), "not a saved graph"),
        (lambda place: _write_manifest(place, arrays={"ids": {"dtype": "|O8", "shape": [3]}}), "type |O8"),
        (lambda place: _write_manifest(place, format=1), "graph format 1"),
    ],
)
def test_a_damaged_import_is_refused(tmp_path, damage, says):
    Graph.from_edges(ring(), np.eye(NODES)).save(tmp_path / "graphs" / "mine")
    damage(tmp_path / "graphs" / "mine")
    with pytest.raises(InvalidInput, match=re.escape(says)):
        shape_of_data(DataSpec(name="imported", imported="mine"), home=tmp_path)


@pytest.mark.parametrize("name", ["digits", "imported"])
def test_held_out_edges_are_told_without_choosing_them(tmp_path, name):
    graph = Graph.from_edges(np.random.default_rng(0).integers(400, size=(2, 9_000)), np.ones((400, FEATURES)))
    graph.save(tmp_path / "graphs" / "mine")
    data = DataSpec(name=name, imported="mine" if name == "imported" else None, held_out_edges=0.3)
    told, found = shape_of_data(data, home=tmp_path), shape_of(load(data, home=tmp_path))
    assert told.edges == pytest.approx(found.edges, rel=0.03)
    assert replace(told, edges=0, loading=0, note="") == replace(found, edges=0, note="")
    whole = shape_of_data(data.model_copy(update={"held_out_edges": 0}), home=tmp_path)
    assert told.loading > whole.edges
    assert whole.edges > told.edges


def spoiled(path: Path) -> Path:
    """The same npz with other bytes in its arrays: whoever reads them notices, whoever reads headers does not."""
    content = bytearray(path.read_bytes())
    at = content.index(b"\x93NUMPY")
    while at >= 0:
        data = at + 10 + int.from_bytes(content[at + 8 : at + 10], "little")
        content[data : data + 4] = b"\xff\xff\xff\x7f"
        at = content.find(b"\x93NUMPY", data)
    path.write_bytes(content)
    return path


def test_a_dense_npz_is_told_by_its_headers_alone(tmp_path):
    path, nodes = tmp_path / "graph.npz", 2_000  # large enough that no array is read with its header
    np.savez(path, edge_index=ring(nodes), x=np.ones((nodes, FEATURES)), y=np.arange(nodes) % 2)
    found = shape_of(load(files(npz=path)))
    told = shape_of_data(files(npz=spoiled(path)))
    assert counts(told) == counts(found) == (nodes, 2 * nodes, FEATURES)
    assert told.classes > 0
    assert told.loading >= path.stat().st_size // 2
    assert "both directions" in told.note
    with pytest.raises(InvalidInput):
        load(files(npz=path))
    directed = DataSpec(name="files", files={"npz": str(path), "directed": True})
    assert shape_of_data(directed).edges == nodes


def test_a_sparse_npz_is_told_by_its_headers(tmp_path):
    x = random_sparse(NODES, 100, density=0.05, format="csr", random_state=0)
    adjacency = {"adj_indptr": np.arange(NODES + 1), "adj_indices": ring()[1], "adj_shape": [NODES, NODES]}
    attributes = {"attr_indptr": x.indptr, "attr_indices": x.indices, "attr_data": x.data, "attr_shape": x.shape}
    np.savez_compressed(tmp_path / "graph.npz", **adjacency, **attributes)
    told = shape_of_data(files(npz=tmp_path / "graph.npz"))
    assert (*counts(told), told.nonzeros) == (NODES, 2 * NODES, 100, x.nnz)
    found = shape_of(load(files(npz=tmp_path / "graph.npz")))
    assert (*counts(told), told.nonzeros) == (*counts(found), found.nonzeros)


@pytest.mark.parametrize(
    "content, says", [(None, "no such file"), (b"not a zip", "numpy.savez"), ({"x": np.ones((3, 2))}, "edge_index")]
)
def test_an_npz_that_is_no_graph_is_refused(tmp_path, content, says):
    path = tmp_path / "graph.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(InvalidInput, match=says):
        shape_of_data(files(npz=path))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_are_told_by_counting_rows(tmp_path, kind):
    names = [f"p-{number}" for number in range(NODES)]
    nodes = pa.table({"id": names, "label": np.arange(NODES) % 2, "a": np.ones(NODES), "b": np.ones(NODES)})
    source, target = ring()
    edges = pa.table({"source": [names[i] for i in source], "target": [names[i] for i in target]})
    for name, table in (("nodes", nodes), ("edges", edges)):
        (pacsv.write_csv if kind == "csv" else pq.write_table)(table, tmp_path / f"{name}.{kind}")
    data = files(nodes=tmp_path / f"nodes.{kind}", edges=tmp_path / f"edges.{kind}")
    told, found = shape_of_data(data), shape_of(load(data))
    assert counts(told) == counts(found) == (NODES, 2 * NODES, 2)
    assert told.classes > 0
    assert not told.weighted


def test_lines_are_counted_with_or_without_a_last_line_break_and_values_are_not_looked_at(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target,weight\n1,2,x\n2,3,y\n")
    for text, count in (("id,a\n1,bad\n2,\n3,1\n", 3), ("id,a\n1,bad\n2,\n3,1", 3), ("id,a\n", 0), ("id,a", 0)):
        (tmp_path / "nodes.csv").write_text(text)
        told = shape_of_data(files(nodes=tmp_path / "nodes.csv", edges=tmp_path / "edges.csv"))
        assert (told.nodes, told.edges, told.features, told.weighted) == (count, 4, 1, True)


def test_standardised_features_are_dense(tmp_path):
    settings = {"nodes": 100, "features": 200, "active_features": 5}
    data = DataSpec(name="synthetic", synthetic=settings, features="zscore")
    assert shape_of_data(data).nonzeros is None is shape_of(load(data)).nonzeros
    assert shape_of_data(data).loading >= 4 * 100 * 200
