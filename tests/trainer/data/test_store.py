"""The store's format 2: fingerprint and checksums in the manifest, damage named, cheap checks on opening."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data import store
from trainer.data.graph import Graph
from trainer.errors import InvalidInput


def example(**changes) -> Graph:
    arguments = {"edge_index": [[0, 1, 2], [1, 2, 3]], "x": np.eye(4, 40), "weight": [1.0, 2.0, 3.0], "y": [0, 1, 1, 0]}
    return Graph.from_edges(**arguments | changes)


@pytest.fixture(params=["sparse", "dense"])
def saved(request, tmp_path: Path) -> Path:
    graph = (
        example() if request.param == "sparse" else example(x=np.arange(12.0).reshape(4, 3), ids=["a", "b", "c", "d"])
    )
    graph.save(tmp_path / "graph")
    return tmp_path / "graph"


def change_manifest(directory: Path, **changes) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip_a_bit(path: Path, offset: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("mmap", [True, False])
def test_fingerprint_comes_from_the_manifest_until_something_is_replaced(saved: Path, mmap: bool):
    truth = Graph.open(saved).fingerprint()
    flip_a_bit(saved / "indices.npy")  # had it been worked out from the arrays, it would differ now
    graph = Graph.open(saved, mmap=mmap)
    assert graph.fingerprint() == truth
    other = replace(graph, x=graph.x.to_dense() + 1)
    assert other.fingerprint() not in (truth, replace(graph).fingerprint())
    assert replace(graph).fingerprint() != truth


def test_stored_fingerprint_is_that_of_the_graph_that_was_saved(tmp_path: Path):
    for number, graph in enumerate([example(), example(x=np.ones((4, 2))), example(ids=["ä", "bb", "c", "d"])]):
        graph.save(tmp_path / str(number))
        assert Graph.open(tmp_path / str(number)).fingerprint() == graph.fingerprint()


def test_every_damaged_file_is_named(saved: Path):
    store.verify(saved)
    files = sorted(saved.glob("*.npy"))
    assert len(files) >= 6
    for file in files:
        if file.name not in ("indptr.npy", "x_indptr.npy"):  # their last bytes are checked on opening already
            flip_a_bit(file)
            with pytest.raises(InvalidInput, match=f"{file.name}: damaged"):
                store.verify(saved)
            flip_a_bit(file)
    flip_a_bit(saved / "indptr.npy", -16)
    with pytest.raises(InvalidInput, match=r"indptr.npy: damaged"):
        store.verify(saved)
    flip_a_bit(saved / "indptr.npy", -16)
    store.verify(saved)


def test_a_missing_file_and_a_wrong_fingerprint_are_found(saved: Path):
    change_manifest(saved, fingerprint="0" * 64)
    with pytest.raises(InvalidInput, match="fingerprint"):
        store.verify(saved)
    (saved / "y.npy").unlink()
    with pytest.raises(InvalidInput, match=r"y.npy"):
        store.verify(saved)


def test_verify_tells_how_far_it_is(saved: Path):
    told: list[tuple[str, float]] = []
    store.verify(saved, progress=lambda what, share: told.append((what, share)))
    checksums = [share for what, share in told if what.startswith("checksum")]
    assert len(checksums) == len(list(saved.glob("*.npy")))
    assert checksums == sorted(checksums)
    assert 0 <= checksums[0] <= checksums[-1] < 1


def rewrite(directory: Path, name: str, array: np.ndarray) -> None:
    """Another array, in agreement with what the manifest says of its type and shape."""
    np.save(directory / f"{name}.npy", array)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["arrays"][name] |= {"dtype": array.dtype.str, "shape": array.shape}
    (directory / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "name, array, message",
    [
        ("indptr", np.array([1, 1, 3, 5, 6]), "runs from 1 to 6 instead of 0 to 6"),
        ("indptr", np.array([0, 1, 3, 5, 9]), "runs from 0 to 9 instead of 0 to 6"),
        ("indptr", np.array([0, 1, 3, 6]), "i8 of shape .4. in a graph of 4 nodes"),
        ("indices", np.arange(5), "must be i8 of .6."),
        ("indices", np.arange(6, dtype=np.int32), "i4 of shape .6."),
        ("weight", np.ones(5, np.float32), r"weight.npy: f4 of shape"),
        ("ids", np.arange(3), r"ids.npy: i8 of shape .3."),
        ("y", np.zeros(4, np.float32), r"y.npy: f4"),
        ("x_indptr", np.array([0, 1, 2, 3, 5]), "x_indptr.npy: runs from 0 to 5 instead of 0 to 4"),
        ("x_indices", np.arange(3), "x_indptr.npy: runs from 0 to 4 instead of 0 to 3"),
        ("held_out", np.zeros((3, 2), int), r"held_out.npy: i8 of shape .3, 2."),
        ("held_out", np.zeros(2, int), r"held_out.npy: i8 of shape .2."),
        ("held_out", np.zeros((2, 5), np.int32), r"held_out.npy: i4 of shape .2, 5."),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused_on_opening(tmp_path: Path, name, array, message):
    replace(example(), held_out=torch.tensor([[0], [3]])).save(tmp_path / "graph")
    rewrite(tmp_path / "graph", name, array)
    with pytest.raises(InvalidInput, match=message):
        Graph.open(tmp_path / "graph")


def test_older_formats_are_refused_with_a_remedy(saved: Path):
    change_manifest(saved, format=1)
    with pytest.raises(InvalidInput, match=r"format 1, this version reads 2\. Import or save it anew"):
        Graph.open(saved)


def test_a_graph_replaced_while_it_is_opened_is_read_as_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    example().save(tmp_path / "graph")
    new = example(x=np.eye(4, 40) * 2)
    read, calls = store._read, []

    def read_and_replace(*arguments):
        if not calls:
            store.save(new, tmp_path / "graph", replace=True)
        calls.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(store, "_read", read_and_replace)
    graph = Graph.open(tmp_path / "graph")
    assert graph.fingerprint() == new.fingerprint()
    assert torch.equal(graph.x.to_dense(), new.x.to_dense())


def test_maps_of_a_replaced_graph_stay_readable(tmp_path: Path):
    example().save(tmp_path / "graph")
    old = Graph.open(tmp_path / "graph")
    store.save(example(x=np.eye(4, 40) * 2), tmp_path / "graph", replace=True)
    old.release()
    assert float(old.x.to_dense().sum()) == 4
    assert float(Graph.open(tmp_path / "graph").x.to_dense().sum()) == 8
