"""A table is mapped: as exact as the file, read-only, without open files, and readable after it was deleted."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.embeddings.layout import read_info
from service.embeddings.table import Table
from tests.service.embeddings.tables import VERSION, make_table
from trainer.errors import InvalidInput

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")


@pytest.mark.parametrize("ids", ["int", "shuffled", "str"])
def test_vectors_are_those_of_the_file_to_the_bit(tmp_path, ids):
    table = make_table(tmp_path, 333, 7, ids)
    stored = np.load(tmp_path / "runs" / VERSION / "embeddings" / "vectors.npy")
    rows = np.random.default_rng(1).integers(0, 333, 1000)
    taken = table.take(rows)
    assert taken.tobytes() == stored[rows].tobytes()
    assert taken.flags.c_contiguous
    assert taken.flags.writeable
    assert np.allclose(table.inverse_norms, 1 / np.linalg.norm(stored.astype(np.float64), axis=1), rtol=1e-7)


def test_an_unknown_row_is_not_a_number(tmp_path):
    table = make_table(tmp_path, 5, 3)
    taken = table.take(np.array([4, -1, 0, -1]))
    assert np.isnan(taken).all(1).tolist() == [False, True, False, True]
    assert np.array_equal(taken[[0, 2]], np.asarray(table.vectors)[[4, 0]])
    assert table.take(np.empty(0, np.int64)).shape == (0, 3)
    with pytest.raises(IndexError):
        table.take(np.array([5]))


def test_nobody_can_write_into_a_table(tmp_path):
    table = make_table(tmp_path, 5, 3, "shuffled", labels=2)
    for array in (table.vectors, table.inverse_norms, table.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_rows_of_classes_ascend_and_leave_out_unlabelled_ones(tmp_path):
    table = make_table(tmp_path, labels=[2, -1, 0, 1, 2, -1, 1], rows=7, classes=["a", "b", "ü"])
    assert table.rows_labelled(["ü"]).tolist() == [0, 4]
    assert table.rows_labelled(["b", "ü", "b"]).tolist() == [0, 3, 4, 6]
    assert table.rows_labelled([]).tolist() == []
    assert table.rows_labelled(["a"]).dtype == np.int64
    with pytest.raises(InvalidInput, match=r"unknown class 'c' \(expected one of 'a', 'b', 'ü'\)"):
        table.rows_labelled(["a", "c"])


def test_without_labels_a_filter_by_class_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no labels"):
        make_table(tmp_path).rows_labelled(["a"])


def test_a_deleted_version_can_still_be_read_by_who_has_it_open(tmp_path):
    table = make_table(tmp_path, 1000, 16, "str")
    expected = np.load(table.directory / "vectors.npy")
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "embeddings")
    table.close()  # gives memory back, which must then be read again from files that have no name any more
    assert np.array_equal(table.take(np.arange(1000)), expected)
    assert table.ids.row_of("paper-5") == 5
    with pytest.raises(FileNotFoundError):
        Table.open(table.directory)


@needs_proc
def test_an_open_table_holds_no_file_and_its_maps_go_with_the_last_array(tmp_path):
    def maps() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    before = len(os.listdir("/proc/self/fd"))
    table = make_table(tmp_path, 50, 4, "str", labels=2)
    assert len(os.listdir("/proc/self/fd")) == before
    assert maps() == 7  # vectors, norms, labels, text, offsets, hashes, order
    last = table.vectors[3:4]
    del table
    assert maps() == 1
    assert last.shape == (1, 4)
    del last
    assert maps() == 0


@needs_proc
def test_opening_reads_nothing_large(tmp_path):
    table = make_table(tmp_path, 40_000, 256, "str")  # 41 MB of vectors
    code = """
import sys
from pathlib import Path
from service.embeddings.table import Table
def memory():
    return sum(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith(('RssAnon', 'RssFile')))
Table.open(Path(sys.argv[1])).ids.row_of("paper-5")
before = memory()
table = Table.open(Path(sys.argv[1]))
assert table.ids.row_of("paper-5") == 5
print(memory() - before)
"""
    run = subprocess.run([sys.executable, "-c", code, str(table.directory)], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 8_000  # kB


@pytest.mark.parametrize("name", ["vectors.npy", "inverse_norms.npy", "ids.order.npy", "labels.npy", "version.json"])
def test_a_version_with_a_file_missing_or_cut_does_not_open(tmp_path, name):
    directory = make_table(tmp_path, 20, 3, "shuffled", labels=2).directory
    whole = (directory / name).read_bytes()
    (directory / name).unlink()
    with pytest.raises(FileNotFoundError):
        Table.open(directory)
    (directory / name).write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"is not|Expecting"):
        Table.open(directory)


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"rows": 0}, {"id_type": "uuid"}, {"more": 1}, {"files": {}}, {"rows": None}]
)
def test_a_document_of_another_form_is_refused(tmp_path, change):
    directory = make_table(tmp_path, 3, 2).directory
    file = directory / "version.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match="is not the document of a version"):
        read_info(directory)
    file.write_text("[]")
    with pytest.raises(ValueError, match="is not the document of a version"):
        read_info(directory)
