"""Tables on disk: what was committed is found again, what was not is not trusted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.export.scratch import Scratch, create_table, discard_scratch, open_table, scratch_folder, write_rows

KEY = {"model": "a", "rows": None}


def fill(scratch: Scratch, sweep: int, rows: int, value: float = 1.0) -> None:
    create_table(scratch.table(sweep), (rows, 3), torch.float32)
    write_rows(scratch.table(sweep), 0, np.full((rows, 3), value, np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_table_is_an_ordinary_npy_file(tmp_path, dtype):
    path, rows = tmp_path / "t.npy", np.random.default_rng(0).random((9, 4))
    create_table(path, (12, 4), dtype)
    write_rows(path, 3, rows)
    stored = np.load(path, allow_pickle=False)
    assert str(stored.dtype) == str(dtype).removeprefix("torch.")
    assert np.array_equal(stored[3:], rows.astype(stored.dtype))
    assert not stored[:3].any()
    assert np.array_equal(open_table(path).rows, stored)


@pytest.mark.parametrize("width", [1, 100, 20_000])  # a row far smaller than a page, and one of many pages
@pytest.mark.parametrize("touch", [0, 100_000, 1 << 30])
def test_taking_scattered_rows_is_indexing(tmp_path, width, touch):
    path, rows = tmp_path / "t.npy", np.random.default_rng(0).random((300, width), np.float32)
    create_table(path, rows.shape, torch.float32)
    write_rows(path, 0, rows)
    for at in ([], [0], [299], list(range(300)), [3, 4, 5, 100, 299]):
        taken = open_table(path).take(torch.tensor(at, dtype=torch.int64), touch)
        assert np.array_equal(taken, rows[at])


def test_committed_work_goes_on_and_read_tables_are_removed(tmp_path):
    first = Scratch(tmp_path / "v.npy", KEY)
    for sweep in range(3):
        fill(first, sweep, 5)
        first.commit(sweep + 1, 0)
    assert [path.name for path in sorted(first.path.glob("*.npy"))] == ["sweep-2.npy"]
    again = Scratch(tmp_path / "v.npy", KEY)
    assert (again.sweep, again.rows, again.published) == (3, 0, False)
    assert again.table(2).exists()


@pytest.mark.parametrize("damage", ["other key", "no table", "torn progress", "no progress"])
def test_work_that_cannot_go_on_starts_anew(tmp_path, damage):
    scratch = Scratch(tmp_path / "v.npy", KEY)
    fill(scratch, 0, 5)
    scratch.commit(0, 3)
    if damage == "no table":
        scratch.table(0).unlink()
    elif damage == "torn progress":
        (scratch.path / "progress.json").write_text('{"key": {"mod')
    elif damage == "no progress":
        (scratch.path / "progress.json").unlink()
    again = Scratch(tmp_path / "v.npy", {**KEY, "model": "b"} if damage == "other key" else KEY)
    assert (again.sweep, again.rows) == (0, 0)
    assert not again.table(0).exists()


def test_a_published_target_is_recognised_until_it_changes(tmp_path):
    target = tmp_path / "v.npy"
    scratch = Scratch(target, KEY)
    fill(scratch, 0, 5)
    scratch.commit(1, 0)
    scratch.publish()
    assert Scratch(target, KEY).published
    target.write_bytes(target.read_bytes() + b"x")
    assert not Scratch(target, KEY).published
    discard_scratch(target)
    assert not scratch_folder(target).exists()
    assert target.exists()
