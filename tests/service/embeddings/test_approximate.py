"""Indexes: their recall is what they say, they open only if they are whole, and they leave nothing half-written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from service.embeddings import approximate
from service.embeddings.approximate import build_index, index_memory, open_index
from service.embeddings.table import Table
from tests.service.embeddings.tables import make_table
from trainer.errors import Infrastructure, InvalidInput

KINDS = ("hnsw", "ivf")


def clustered(rows: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    """Vectors around centres, of lengths that differ: the length must not matter to an index for cosine."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((40, dim))
    vectors = centres[random.integers(0, 40, rows)] + 0.5 * random.standard_normal((rows, dim))
    return (vectors * random.uniform(0.1, 10, (rows, 1))).astype(np.float32)


def brute_force(vectors: NDArray[np.float32], row: int, k: int) -> set[int]:
    x = vectors.astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    scores = x @ x[row]
    scores[row] = -2
    return set(np.argsort(-scores)[:k].tolist())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    made = make_table(tmp_path_factory.mktemp("home"), vectors=clustered(3000, 24))
    for kind in KINDS:
        build_index(made, kind, threads=1)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_recall_is_what_the_document_says(table, kind):
    document = json.loads((table.directory / f"index.{kind}.json").read_text())
    assert document["sample"] == 500
    assert 0.95 <= document["recall_at_10"] <= 1
    index = open_index(table, kind)
    others = np.random.default_rng(99).choice(3000, 100, replace=False)
    rows, _ = index.nearest(table, table.vectors[others], 10, exclude=others)
    vectors = np.array(table.vectors)
    hits = sum(
        len(brute_force(vectors, row, 10) & set(found)) for row, found in zip(others, rows.tolist(), strict=True)
    )
    assert hits / 1000 > document["recall_at_10"] - 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_document_vouches_for_the_file(table, kind):
    document = json.loads((table.directory / f"index.{kind}.json").read_text())
    content = (table.directory / f"index.{kind}.faiss").read_bytes()
    assert document["bytes"] == len(content)
    assert document["sha256"] == hashlib.sha256(content).hexdigest()
    assert document.keys() == {
        "format", "kind", "rows", "dim", "parameters", "effort", "recall_at_10", "sample", "seconds", "bytes", "sha256",
    }  # fmt: skip
    assert not list(table.directory.glob(".*"))


def test_an_index_is_well_below_a_second_copy_of_the_vectors(tmp_path: Path):
    table = make_table(tmp_path, vectors=clustered(1000, 256))
    for kind in KINDS:
        assert build_index(table, kind, threads=1)["bytes"] < 0.5 * table.vectors.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_one_thread_builds_the_same_index_again(table, kind):
    before = (table.directory / f"index.{kind}.faiss").read_bytes()
    (table.directory / f"index.{kind}.json").unlink()
    build_index(table, kind, threads=1)
    assert (table.directory / f"index.{kind}.faiss").read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_index_is_not_built_again(table, kind):
    files = [table.directory / f"index.{kind}.{suffix}" for suffix in ("faiss", "json")]
    before = [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files]
    assert build_index(table, kind, threads=1) == json.loads(files[1].read_text())
    assert [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files] == before


def test_two_who_build_at_once_make_one_index(tmp_path: Path):
    table = make_table(tmp_path, 300, 4)
    at_work, go_on = threading.Event(), threading.Event()
    told: list[str] = []

    def first(what: str, share: float) -> None:
        if what == "adding":
            at_work.set()
            assert go_on.wait(60)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(build_index, table, "hnsw", threads=1, progress=first)
        assert at_work.wait(60)
        half_written = table.directory / ".index.hnsw.faiss.12345.tmp"
        half_written.write_bytes(b"by the first")
        two = pool.submit(build_index, table, "hnsw", threads=1, progress=lambda what, share: told.append(what))
        with pytest.raises(TimeoutError):
            two.result(0.5)
        assert half_written.exists()
        half_written.unlink()
        go_on.set()
        assert one.result(60) == two.result(60)
    assert told == ["done"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_tiny_tables_have_an_index_too(tmp_path: Path, kind, rows):
    table = make_table(tmp_path, vectors=clustered(rows, 5))
    document = build_index(table, kind, threads=1)
    assert (document["recall_at_10"], document["sample"]) == ((1, rows) if rows > 1 else (0, 0))  # one has no neighbour
    found, scores = open_index(table, kind).nearest(table, table.vectors[:1], 1)
    assert found.tolist() == [[0]]
    assert scores[0, 0] == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_and_equal_vectors_can_be_indexed(tmp_path: Path, kind):
    vectors = np.concatenate([np.zeros((300, 6), np.float32), np.repeat(clustered(3, 6), 200, axis=0)])
    document = build_index(make_table(tmp_path, vectors=vectors), kind, threads=1)
    assert 0 <= document["recall_at_10"] <= 1
    assert document["sample"] == 500


@pytest.mark.parametrize("kind", KINDS)
def test_recall_is_measured_on_all_the_queries_there_are(tmp_path: Path, kind):
    vectors = np.zeros((3000, 6), np.float32)
    vectors[1000:1120] = clustered(120, 6)
    assert build_index(make_table(tmp_path, vectors=vectors), kind, threads=1)["sample"] == 120


def test_recall_that_cannot_be_reached_is_told_as_it_is(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(approximate.EFFORTS, "ivf", (1,))
    table = make_table(tmp_path, vectors=np.random.default_rng(0).standard_normal((3000, 32), dtype=np.float32))
    assert build_index(table, "ivf", threads=1)["recall_at_10"] < 0.8


def damage_cut_short(index: Path, document: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


def damage_other_bytes(index: Path, document: Path) -> None:
    index.write_bytes(b"\xff" * index.stat().st_size)


def damage_document(index: Path, document: Path) -> None:
    document.write_text('{"format": 1')


def damage_effort(index: Path, document: Path) -> None:
    document.write_text(json.dumps(json.loads(document.read_text()) | {"effort": 10**9}))


def damage_other_table(index: Path, document: Path) -> None:
    document.write_text(json.dumps(json.loads(document.read_text()) | {"rows": 7}))


def damage_empty(index: Path, document: Path) -> None:
    index.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_cut_short, damage_other_bytes, damage_document, damage_other_table])
def test_a_damaged_index_is_built_again(tmp_path: Path, damage):
    table = make_table(tmp_path, vectors=clustered(60, 5))
    build_index(table, "hnsw", threads=1)
    content = (table.directory / "index.hnsw.faiss").read_bytes()
    damage(table.directory / "index.hnsw.faiss", table.directory / "index.hnsw.json")
    build_index(table, "hnsw", threads=1)
    open_index(table, "hnsw")
    assert (table.directory / "index.hnsw.faiss").read_bytes() == content


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [
    damage_cut_short, damage_other_bytes, damage_document, damage_effort, damage_other_table, damage_empty,
])  # fmt: skip
def test_a_damaged_index_is_refused(tmp_path: Path, kind, damage):
    table = make_table(tmp_path, vectors=clustered(60, 5))
    build_index(table, kind, threads=1)
    damage(table.directory / f"index.{kind}.faiss", table.directory / f"index.{kind}.json")
    with pytest.raises(InvalidInput, match="again"):
        open_index(table, kind)


def test_an_index_that_is_not_built_is_not_found(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        open_index(make_table(tmp_path, 10, 4), "hnsw")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path):
    table = make_table(tmp_path, 50, 4)
    (table.directory / "index.hnsw.faiss").mkdir()  # a file cannot take the place of a folder
    with pytest.raises(Infrastructure, match="could not be written"):
        build_index(table, "hnsw", threads=1)
    assert not (table.directory / "index.hnsw.json").exists()
    assert not list(table.directory.glob(".*"))


@pytest.mark.parametrize("suffix", ["faiss", "json"])
def test_a_disk_that_is_full_at_either_file_can_be_tried_again(tmp_path: Path, monkeypatch, suffix):
    replace = os.replace

    def refuse(source, target):
        if str(target).endswith(f"index.ivf.{suffix}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    table = make_table(tmp_path, 50, 4)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(Infrastructure, match="No space left"):
        build_index(table, "ivf", threads=1)
    assert not (table.directory / "index.ivf.json").exists()
    assert not list(table.directory.glob(".*"))


def test_leftovers_of_a_killed_attempt_are_removed(tmp_path: Path):
    table = make_table(tmp_path, 50, 4)
    (table.directory / ".index.ivf.faiss.12345.tmp").write_bytes(b"half")
    (table.directory / ".index.hnsw.faiss.12345.tmp").write_bytes(b"of another job")
    build_index(table, "ivf", threads=1)
    assert [file.name for file in table.directory.glob(".*")] == [".index.hnsw.faiss.12345.tmp"]


def test_an_open_index_outlives_its_file(tmp_path: Path):
    table = make_table(tmp_path, vectors=clustered(500, 8))
    build_index(table, "hnsw", threads=1)
    index = open_index(table, "hnsw")
    before = index.nearest(table, table.vectors[:5], 10)[0]
    (table.directory / "index.hnsw.faiss").unlink()
    assert (index.nearest(table, table.vectors[:5], 10)[0] == before).all()


def test_memory_grows_with_rows_and_stays_below_three_copies_when_large():
    for kind in KINDS:
        assert index_memory(1000, 64, kind) < index_memory(1_000_000, 64, kind)
        assert index_memory(10_000_000, 256, kind) < 3 * 10_000_000 * 256 * 4


def test_progress_is_told(tmp_path: Path):
    told: list[tuple[str, float]] = []
    build_index(make_table(tmp_path, 300, 4), "ivf", threads=1, progress=lambda what, share: told.append((what, share)))
    assert ("adding", 1.0) in told
    assert told[-1] == ("done", 1.0)
