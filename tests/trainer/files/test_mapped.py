"""Memory-mapped graphs give their pages back: measured, not assumed."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data import store
from trainer.data.graph import Graph
from trainer.data.seal import seal
from trainer.files.mapped import map_bytes, map_npy, pieces, release

MB = 1 << 20
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/status is Linux's")


def status(field: str) -> int:
    """Bytes of VmHWM, RssFile, ... of this process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{field}:"))


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A graph of 100 nodes and 192 MB of features, most of it a hole in the file."""
    rows, width = 100, 192 * MB // 400
    for name, array in (("indptr", np.zeros(rows + 1, int)), ("indices", np.zeros(0, int)), ("ids", np.arange(rows))):
        np.save(tmp_path / f"{name}.npy", array)
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(rows, width))[0, 0] = 1
    return tmp_path


def peak_growth(work: Callable[[], object]) -> int:
    """By how much the process's memory rose above what it was before, at most, while `work` ran."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def test_release_gives_back_the_pages_that_were_read(large: Path):
    seal(large, name="large", num_features=192 * MB // 400)
    graph = Graph.open(large)
    before = status("RssFile")
    assert float(graph.x.sum()) == 1
    assert status("RssFile") - before > 150 * MB
    graph.release()
    assert status("RssFile") - before < 30 * MB
    assert float(graph.x[0, 0]) == 1  # still there

    other = replace(graph, name="other", x=graph.x[:, :4])  # still over the same maps
    graph.indptr.sum()
    other.release()


def test_fingerprint_and_checksums_and_saving_need_a_fraction_of_the_size(large: Path, tmp_path: Path):
    assert peak_growth(lambda: seal(large, name="large", num_features=192 * MB // 400)) < 64 * MB
    graph = Graph.open(large)
    assert peak_growth(lambda: graph.save(tmp_path / "copy")) < 64 * MB
    assert peak_growth(lambda: store.verify(tmp_path / "copy")) < 64 * MB
    assert Graph.open(tmp_path / "copy").fingerprint() == graph.fingerprint()
    unknown = replace(graph)
    found: list[str] = []
    assert peak_growth(lambda: found.append(unknown.fingerprint())) < 64 * MB
    assert found == [graph.fingerprint()]


def test_releasing_a_graph_in_memory_changes_nothing(tmp_path: Path):
    graph = Graph.from_edges([[0], [1]], np.ones((2, 3)))
    graph.release()
    assert graph.x.tolist() == [[1, 1, 1]] * 2
    graph.save(tmp_path / "graph")
    loaded = Graph.open(tmp_path / "graph", mmap=False)
    loaded.release()
    assert torch.equal(loaded.x, graph.x)


def test_what_was_written_to_a_private_map_is_kept(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.zeros(10))
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[3] = 5
    release(private[2:])
    assert private[3] == 5


def test_a_mapped_graph_can_be_sent_to_another_process(tmp_path: Path):
    graph = Graph.from_edges([[0], [1]], np.ones((2, 50_000)))
    graph.save(tmp_path / "graph")
    mapped = Graph.open(tmp_path / "graph")
    sent = pickle.dumps(mapped)
    assert len(sent) < 1.5 * 400_000  # its features once, not once more for the maps
    again = pickle.loads(sent)
    assert again.fingerprint() == graph.fingerprint()
    assert torch.equal(again.x, graph.x)
    again.release()


@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (37, 11), (3, 0)])
def test_pieces_are_the_array(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainer.files.mapped.PIECE_BYTES", 100)
    array = np.arange(np.prod(shape)).reshape(shape)
    found = list(pieces(array))
    assert all(piece.flags.c_contiguous and piece.nbytes <= 100 for piece in found)
    if found:
        np.testing.assert_array_equal(np.concatenate(found), array)


@pytest.mark.parametrize("array", [np.arange(6.0), np.asfortranarray(np.ones((3, 2), "<f4")), np.ones((3, 2), ">f4")])
def test_an_array_of_another_kind_is_not_mapped(tmp_path: Path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=r"a\.npy: holds"):
        map_npy(tmp_path / "a.npy", "<f4", (3, 2))
    (tmp_path / "a.npy").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"a\.npy: is not a \.npy file"):
        map_npy(tmp_path / "a.npy", "<f4", (3, 2))


def test_a_map_without_a_descriptor_is_read_in_pieces_and_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainer.files.mapped.PIECE_BYTES", 700)
    values = np.random.default_rng(0).integers(0, 99, (1000, 3))
    np.save(tmp_path / "a.npy", values)
    descriptors = len(os.listdir("/proc/self/fd"))
    mapped = map_npy(tmp_path / "a.npy", "<i8", (1000, 3))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    parts = []
    for piece in pieces(mapped):
        parts.append(piece.copy())
        release(piece)
    assert {len(part) for part in parts[:-1]} == {29}
    assert np.array_equal(np.concatenate(parts), values)
    assert np.array_equal(mapped, values)  # read again from the file


def test_release_takes_only_the_pages_of_the_array_it_is_given(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.ones(64 * MB // 8))
    before = status("RssFile")
    for mapped in (map_npy(tmp_path / "a.npy", "<f8", (64 * MB // 8,)), np.load(tmp_path / "a.npy", mmap_mode="r")):
        assert mapped.sum() == len(mapped)
        release(mapped[: len(mapped) // 2])
        assert 24 * MB < status("RssFile") - before < 48 * MB
        release(mapped)
        assert status("RssFile") - before < 16 * MB


def test_an_empty_file_is_mapped_as_nothing(tmp_path: Path):
    (tmp_path / "empty").touch()
    assert len(map_bytes(tmp_path / "empty")) == 0
    with pytest.raises(FileNotFoundError):
        map_bytes(tmp_path / "none")
