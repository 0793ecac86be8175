"""Parquet files and Arrow streams hold what the table holds; the file is made once, completely or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.embeddings import parquet
from service.embeddings.parquet import arrow_stream, lookup_arrow, names_column, neighbors_arrow, parquet_file
from tests.service.embeddings.tables import VERSION, make_ids, make_table

ROOT = Path(__file__).resolve().parents[3]


def read(stream: bytes) -> pa.Table:
    return pa.ipc.open_stream(stream).read_all()


def temporary(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("ids", ["int", "shuffled", "str"])
def test_the_file_holds_ids_vectors_and_labels_in_row_order(tmp_path, monkeypatch, ids):
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 50 * 6 * 4)
    table = make_table(tmp_path, 333, 6, ids, labels=3)
    file = parquet_file(table)
    assert file == table.directory / "download.parquet"
    stored = pq.read_table(file)
    assert stored.schema.types == [
        pa.string() if ids == "str" else pa.int64(), pa.list_(pa.float32(), 6), pa.string()
    ]  # fmt: skip
    assert stored["id"].to_pylist() == make_ids(333, ids)
    vectors = np.load(table.directory / "vectors.npy")
    assert stored["vector"].combine_chunks().flatten().to_numpy().tobytes() == vectors.tobytes()
    labels = np.load(table.directory / "labels.npy")
    assert stored["label"].to_pylist() == [None if label < 0 else f"class {label}" for label in labels]
    assert pq.ParquetFile(file).num_row_groups == 7
    assert temporary(table.directory) == []


def test_without_labels_there_is_no_such_column(tmp_path):
    assert pq.read_table(parquet_file(make_table(tmp_path))).column_names == ["id", "vector"]


def test_the_file_is_made_once_however_many_ask(tmp_path, monkeypatch):
    table, write, made = make_table(tmp_path, 2000, 16), parquet._write, []
    monkeypatch.setattr(parquet, "_write", lambda *arguments: made.append(1) or write(*arguments))
    with ThreadPoolExecutor(6) as threads:
        files = list(threads.map(lambda _: parquet_file(table).stat().st_ino, range(12)))
    assert len(made) == 1
    assert len(set(files)) == 1
    assert temporary(table.directory) == []


def test_a_file_that_cannot_be_written_is_not_there_and_can_be_made_later(tmp_path, monkeypatch):
    table = make_table(tmp_path)

    def full(table, path):
        path.write_bytes(b"some of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            parquet_file(table)
    assert not (table.directory / "download.parquet").exists()
    assert temporary(table.directory) == []
    assert pq.read_table(parquet_file(table)).num_rows == 100


def test_killed_while_writing_the_next_makes_it(tmp_path):
    table = make_table(tmp_path)
    code = """
import os, sys
from pathlib import Path
from service.embeddings import parquet
from service.embeddings.table import Table
def dies(table, path):
    path.write_bytes(b"x" * 1_000_000)
    os._exit(9)
parquet._write = dies
parquet.parquet_file(Table.open(Path(sys.argv[1])))
"""
    assert subprocess.run([sys.executable, "-c", code, str(table.directory)], cwd=ROOT, check=False).returncode == 9
    assert temporary(table.directory) == [".download.parquet.tmp"]
    assert pq.read_table(parquet_file(table)).num_rows == 100
    assert temporary(table.directory) == []


def test_of_a_deleted_version_there_is_no_file(tmp_path):
    table = make_table(tmp_path)
    (tmp_path / "embeddings" / VERSION).rename(tmp_path / "discarded")
    with pytest.raises(FileNotFoundError):
        parquet_file(table)


def test_an_unknown_id_has_no_vector_in_arrow():
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    table = read(lookup_arrow([7, 8, 9], vectors, np.array([False, True, False])))
    assert table.schema.types == [pa.int64(), pa.list_(pa.float32(), 2)]
    assert table.to_pydict() == {"id": [7, 8, 9], "vector": [[0.0, 1.0], None, [4.0, 5.0]]}
    everything = read(lookup_arrow(["a", "b", "c"], vectors))
    assert everything["vector"].to_pylist() == vectors.tolist()


@pytest.mark.parametrize(
    "ids, expected",
    [
        ([1, 2], [1, 2]),
        ([1, "2"], ["1", "2"]),
        ([1, 2**63], ["1", str(2**63)]),
        (["ü", "\ud800"], ["ü", "\\ud800"]),
        (["", "0042"], ["", "0042"]),
    ],
)
def test_ids_are_integers_if_all_are_else_text(ids, expected):
    assert read(arrow_stream({"id": ids}))["id"].to_pylist() == expected


def test_neighbours_are_a_row_each():
    scores = [np.array([0.5, 0.25], np.float32), np.array([], np.float32), np.array([1.0], np.float32)]
    vectors = [np.ones((2, 3), np.float32), np.empty((0, 3), np.float32), np.zeros((1, 3), np.float32)]
    made_for = {"query_type": "str", "id_type": "int", "dim": 3}
    table = read(neighbors_arrow(["q", 3, "7"], [[1, 2], [], [9]], scores, vectors, **made_for))
    assert table.to_pydict() == {
        "query": ["q", "q", "7"], "rank": [1, 2, 1], "id": [1, 2, 9], "score": [0.5, 0.25, 1.0],
        "vector": [[1.0] * 3, [1.0] * 3, [0.0] * 3],
    }  # fmt: skip
    for found in (([], [], [], []), ([5], [[]], scores[1:2], vectors[1:2])):
        nothing = read(neighbors_arrow(*found, **made_for))
        assert (nothing.num_rows, nothing.schema) == (0, table.schema)
    made_for = {"query_type": "int", "id_type": "str", "dim": 3}
    table = read(neighbors_arrow([0, "42"], [["a"], ["7"]], [np.ones(1), np.ones(1)], **made_for))
    assert table.schema == read(neighbors_arrow([], [], [], **made_for)).schema
    assert (table["query"].to_pylist(), table["id"].to_pylist()) == ([0, 42], ["a", "7"])
    assert "vector" not in table.column_names


def test_names_have_one_type_whichever_occur():
    for names, kind in ((["a", "b"], pa.string()), ([7, -3], pa.int64()), ([1, 2**70], pa.string())):
        for numbers in ([1, 0, 0], [0], []):
            column = names_column(np.array(numbers, np.int32), names)
            assert column.type == kind
            assert [str(name) for name in column.to_pylist()] == [str(names[number]) for number in numbers]
