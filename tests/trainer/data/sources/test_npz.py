"""The user's graph as npz: both layouts, and everything that can be wrong with one."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy
from scipy.sparse import csr_matrix

from trainer.data.graph import Graph
from trainer.data.sources import npz
from trainer.errors import InvalidInput
from trainer.spec.data import FilesSpec

EDGES = np.array([[0, 1, 2], [1, 2, 0]])
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])


def read(path: Path, *, directed: bool = False, **arrays) -> Graph:
    np.savez_compressed(path / "my.npz", **arrays)
    return npz.load(FilesSpec(npz=str(path / "my.npz"), directed=directed))


def parts(prefix: str, matrix: csr_matrix) -> dict[str, np.ndarray]:
    names = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape)}
    return {f"{prefix}_{key}": value for key, value in names.items()}


ADJ = csr_matrix((np.ones(3), tuple(EDGES)), shape=(4, 4))
ATTR = csr_matrix(X)


def test_both_layouts_give_the_same_graph(tmp_path: Path):
    plain = read(tmp_path, edge_index=EDGES, x=X, y=[5, -1, 7, 5], ids=["a", "b", "c", "d"], directed=True)
    sparse = read(
        tmp_path,
        **parts("adj", ADJ),
        **parts("attr", ATTR),
        labels=[5, -1, 7, 5],
        ids=["a", "b", "c", "d"],
        directed=True,
    )
    assert plain.fingerprint() == sparse.fingerprint()
    assert plain.edge_index.T.tolist() == [[2, 0], [0, 1], [1, 2]]
    assert plain.name == "my"
    for graph in (plain, sparse):
        assert (graph.y.tolist(), graph.classes) == ([0, -1, 1, 0], ("5", "7"))
        assert graph.weight is None
        assert graph.notes == ("kept 1 isolated node",)


def test_text_labels_weights_and_masks(tmp_path: Path):
    graph = read(
        tmp_path,
        edge_index=EDGES,
        x=X,
        labels=["cat", "", "dog", "ant"],
        edge_weight=[1, 2, 3],
        train=[3],
        val=np.array([True, False, False, False]),
        test=np.array([1, 2]),
    )
    assert (graph.y.tolist(), graph.classes) == ([1, -1, 2, 0], ("ant", "cat", "dog"))
    assert graph.weight.tolist() == [1, 3, 1, 2, 3, 2]  # into 0 from 1 and 2, into 1 from 0 and 2, into 2 from 0 and 1
    assert {key: part.tolist() for key, part in graph.split.items()} == {"train": [3], "val": [0], "test": [1, 2]}


def test_adjacency_values_other_than_one_are_weights(tmp_path: Path):
    graph = read(tmp_path, **parts("adj", ADJ * 2), x=X, directed=True)
    assert graph.weight.tolist() == [2, 2, 2]


def changed(prefix: str, **changes) -> dict[str, object]:
    matrix = parts(prefix, ADJ if prefix == "adj" else ATTR)
    return matrix | {f"{prefix}_{key}": value for key, value in changes.items()}


GOOD = {"edge_index": EDGES, "x": X}


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"x": X}, "neither edge_index nor adj_indptr is in it, only x"),
        ({"edge_index": EDGES}, "neither x nor attr_indptr"),
        (GOOD | {"edge_index": EDGES.T}, r"edge_index has shape \(3, 2\).*Transpose"),
        (GOOD | {"edge_index": EDGES + 2}, r"edge_index\[:, 1\] = \(3, 4\)"),
        (GOOD | {"edge_index": EDGES.astype(float)}, "integers"),
        (GOOD | {"x": np.where(X == 6, np.nan, X)}, r"x\[2, 1\] is nan"),
        (GOOD | {"x": X.astype(str)}, "give numbers"),
        (GOOD | {"x": X.astype(complex)}, "x has type complex128"),
        (GOOD | {"y": [0, 1]}, r"y or labels has shape \(2,\)"),
        (GOOD | {"y": [0, 1, -3, 0]}, "label -3 of node 2"),
        (GOOD | {"y": [0.5, 1, 2, 0]}, "labels have type float64"),
        (GOOD | {"ids": [1, 2, 2, 3]}, "id 2 is used twice, by nodes 1 and 2"),
        (GOOD | {"ids": [1.5, 2, 2, 3]}, "ids have type float64"),
        (GOOD | {"edge_weight": [1, -1, 1]}, r"edge_weight\[1\] is -1"),
        (GOOD | {"edge_weight": ["1", "1", "1"]}, "edge_weight has type"),
        (GOOD | {"train": [0]}, "needs train, val and test"),
        (GOOD | {"train": np.array([True])}, "mask train"),
        ({"x": X} | changed("adj", shape=[4, 5]), "square"),
        ({"x": X[:3]} | changed("adj"), "adj_shape says 4 nodes, the features have 3 rows"),
        ({"x": X} | changed("adj", indices=[1, 2, 9]), r"adj_indices\[2\] is 9"),
        ({"x": X} | changed("adj", indptr=[0, 2, 1, 3, 3]), "adj_indptr must rise"),
        ({"x": X} | changed("adj", indptr=[0, 1, 2, 3]), "adj_indptr must rise"),
        ({"x": X} | changed("adj", data=[1.0]), "adj_data is float64 of shape"),
        ({"x": X} | changed("adj", shape=4), "adj_shape is int64 of shape"),
        ({"edge_index": EDGES} | changed("attr", indices=[0, 1, 0, 1, 0, 1, 0, -1]), r"attr_indices\[7\] is -1"),
        ({"x": X, "adj_indptr": [0, 1]}, "without adj_indices"),
    ],
)
def test_bad_arrays_are_refused_with_file_array_and_position(tmp_path: Path, arrays, message):
    with pytest.raises(InvalidInput, match=message) as failure:
        read(tmp_path, **arrays)
    assert str(failure.value).startswith(f"{tmp_path / 'my.npz'}: ")


def refused(path: Path, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as failure:
        npz.load(FilesSpec(npz=str(path)))
    assert str(failure.value).startswith(f"{path}: ")


def test_objects_are_refused_before_they_are_read(tmp_path: Path):
    ragged = np.array([[1], [1, 2]], dtype=object)
    np.savez(tmp_path / "my.npz", x=ragged, edge_index=EDGES)
    refused(tmp_path / "my.npz", "x holds Python objects")


def test_what_is_no_npz_is_refused(tmp_path: Path):
    refused(tmp_path / "absent.npz", "no such file. Check data.files.npz")
    refused(tmp_path, "no such file")
    (tmp_path / "text.npz").write_text("x")
    refused(tmp_path / "text.npz", "not an npz file")
    np.savez(tmp_path / "whole.npz", **GOOD)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-100])
    refused(tmp_path / "cut.npz", "not an npz file, or cut short")
    with zipfile.ZipFile(tmp_path / "noise.npz", "w") as archive:
        archive.writestr("x.npy", b"not numpy")
    refused(tmp_path / "noise.npz", "cannot be read")


def test_a_changed_byte_is_noticed(tmp_path: Path):
    np.savez(tmp_path / "my.npz", edge_index=EDGES, x=np.full((4, 100), 7.0))
    content = bytearray((tmp_path / "my.npz").read_bytes())
    content[content.index(np.full(3, 7.0).tobytes()) + 800] ^= 1
    (tmp_path / "my.npz").write_bytes(content)
    refused(tmp_path / "my.npz", "CRC")


def test_a_bomb_is_refused_without_unpacking(tmp_path: Path, monkeypatch):
    np.savez_compressed(tmp_path / "my.npz", edge_index=EDGES, x=np.zeros((4, 100_000)))
    assert (tmp_path / "my.npz").stat().st_size < 20_000
    monkeypatch.setattr(npz, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(np, "load", None)
    refused(tmp_path / "my.npz", r"unpacks to 3,2\d\d,\d\d\d bytes, more than the 1,000,000 allowed")


def test_what_is_no_array_is_left_packed(tmp_path: Path, monkeypatch):
    graph = read(tmp_path, edge_index=EDGES, x=X)
    with zipfile.ZipFile(tmp_path / "my.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("notes.txt", bytes(5_000_000))
    monkeypatch.setattr(npz, "MAX_BYTES", 1_000_000)  # which counts arrays: nothing else may be unpacked
    opened, names = zipfile.ZipFile.open, []

    def note(archive, member, *arguments, **options):
        names.append(getattr(member, "filename", member))
        return opened(archive, member, *arguments, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", note)
    again = npz.load(FilesSpec(npz=str(tmp_path / "my.npz")))
    assert again.fingerprint() == graph.fingerprint()
    assert set(names) == {"edge_index.npy", "x.npy"}


def test_a_header_that_promises_more_than_is_there_is_refused(tmp_path: Path):
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 2)})
    with zipfile.ZipFile(tmp_path / "my.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    refused(tmp_path / "my.npz", "x is cut short")
