"""Arrays written in pieces are what numpy would have written at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.files import mapped
from trainer.files.npy import NpyWriter, write_npy


@pytest.mark.parametrize(
    "array",
    [
        np.arange(1000),
        np.arange(12, dtype=np.float32).reshape(4, 3),
        np.array(["ä", "long one", "c"]),
        np.empty((0, 7), dtype=np.float32),
        np.empty(0, dtype=np.int64),
        np.arange(40).reshape(4, 10)[:, ::2],
    ],
    ids=["integers", "matrix", "text", "no rows", "nothing", "not contiguous"],
)
def test_pieces_give_the_very_bytes_of_np_save(tmp_path: Path, array, monkeypatch):
    monkeypatch.setattr(mapped, "PIECE_BYTES", 50)
    write_npy(tmp_path / "pieces.npy", array, release=lambda: None)
    np.save(tmp_path / "whole.npy", np.ascontiguousarray(array))
    assert (tmp_path / "pieces.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_rows_of_another_type_are_converted_and_counted(tmp_path: Path):
    with NpyWriter(tmp_path / "x.npy", np.float32, (2,)) as file:
        for _ in range(3):
            file.append(np.ones((5, 2), dtype=np.int8))
        assert file.rows == 15
    stored = np.load(tmp_path / "x.npy")
    assert (stored.dtype, stored.shape, stored.sum()) == (np.float32, (15, 2), 30)
