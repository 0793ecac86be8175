"""Rows read by pieces equal plain indexing, and leave no page of a memory map behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.evaluation.rows import Rows, sample
from trainer.files.mapped import release


def table(n: int, d: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, d)).astype(np.float32)


@pytest.fixture
def mapped(tmp_path) -> np.memmap:
    """8 MB on disk, opened for reading."""
    np.save(tmp_path / "vectors.npy", table(32_768, 64))
    return np.load(tmp_path / "vectors.npy", mmap_mode="r")


def resident_kb(array: np.memmap) -> int:
    """What the kernel counts as this process's memory for the file of a map."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [at for at, line in enumerate(lines) if line.endswith(f" {Path(array.filename).resolve()}")]
    assert starts, "the file is not mapped"
    sizes = [next(line for line in lines[at:] if line.startswith("Rss:")) for at in starts]
    return sum(int(line.split()[1]) for line in sizes)


@pytest.mark.parametrize("n, piece", [(1, 1), (97, 10), (100, 10), (50, 512), (33, 32)])
@pytest.mark.parametrize("kind", ["array", "tensor", "mapped"])
def test_pieces_and_gathered_rows_equal_plain_indexing(tmp_path, n, piece, kind):
    z = table(n, 5)
    np.save(tmp_path / "z.npy", z)
    source = {"array": z, "tensor": torch.from_numpy(z), "mapped": np.load(tmp_path / "z.npy", mmap_mode="r")}[kind]
    rows = Rows(source, torch.float32, piece)
    assert torch.equal(torch.cat(list(rows.pieces())), torch.from_numpy(z))
    nodes = torch.randint(n, (2 * n,), generator=torch.Generator().manual_seed(0))  # unordered, some of them twice
    assert torch.equal(rows.take(nodes), torch.from_numpy(z)[nodes])
    chosen = z[nodes.numpy()]
    unit = chosen / np.linalg.norm(chosen, axis=1, keepdims=True)
    np.testing.assert_allclose(rows.take(nodes, unit=True).numpy(), unit, rtol=1e-6, atol=1e-7)
    assert rows.take(nodes[:0]).shape == (0, 5)


def test_a_gather_sweeps_the_table_once_in_the_order_of_the_file():
    rows = Rows(table(100, 3), torch.float32, 10)
    nodes = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:60]
    parts = [nodes[where] // 10 for where, _ in rows.gathered(nodes)]
    assert all(len(part.unique()) == 1 for part in parts)
    assert [int(part[0]) for part in parts] == sorted({int(node) // 10 for node in nodes})


def test_nodes_beyond_the_table_are_refused():
    for node in (20, 10**9):
        with pytest.raises(IndexError):
            Rows(table(20, 3), torch.float32, 6).take(torch.tensor([1, node]))


def test_dtype_is_kept_unless_told_otherwise():
    z = table(10, 2)
    assert Rows.of(z.astype(np.float64)).take(torch.tensor([0])).dtype == torch.float64
    assert Rows.of(torch.from_numpy(z).double(), torch.float32).take(torch.tensor([0])).dtype == torch.float32
    assert next(Rows.of(z.astype(np.float16)).pieces()).dtype == torch.float32
    with pytest.raises(ValueError, match="two dimensions"):
        Rows.of(z[0])


@pytest.mark.filterwarnings("error")  # torch warns of tensors over read-only memory
def test_reading_leaves_no_page_of_a_map_behind(mapped):
    assert float(np.asarray(mapped).sum()) != 0
    assert resident_kb(mapped) >= 8_192
    for view in (mapped, mapped[5:], np.asarray(mapped)):
        float(np.asarray(mapped).sum())
        release(view)
        assert resident_kb(mapped) == 0
    rows = Rows.of(mapped)
    rows.take(torch.arange(0, 32_768, 50))
    assert resident_kb(mapped) == 0
    pieces = rows.pieces()
    next(pieces)  # a reader that stops early holds nothing either
    assert resident_kb(mapped) == 0


def test_what_was_written_into_a_private_copy_survives(tmp_path):
    np.save(tmp_path / "z.npy", table(2_000, 8))
    private = np.load(tmp_path / "z.npy", mmap_mode="c")
    private[7] = 99
    Rows.of(private).take(torch.tensor([3]))
    assert (private[7] == 99).all()


def test_samples_are_seeded_and_only_drawn_when_needed():
    nodes = torch.tensor([9, 2, 30, 4, 11])

    def draw(most: int, seed: int) -> list[int]:
        return sample(nodes, most, torch.Generator().manual_seed(seed)).tolist()

    assert draw(5, 0) == nodes.tolist()
    drawn = [draw(3, seed) for seed in range(30)]
    assert drawn == [draw(3, seed) for seed in range(30)]
    assert len({tuple(part) for part in drawn}) > 1
    for part in drawn:
        assert part == [node for node in nodes.tolist() if node in part]
        assert len(part) == 3
