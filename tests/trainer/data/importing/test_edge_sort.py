"""The sort on disk against `compress` in memory, where ranges are cut again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.data.edges import compress
from trainer.data.importing.edge_sort import EdgeSorter


def sort_on_disk(path: Path, edge_index, weight, n, *, directed, at_once, expected=1, blocks=5):
    scratch, out = path / "scratch", path / "out"
    scratch.mkdir()
    out.mkdir()
    sorter = EdgeSorter(scratch, n, weighted=weight is not None, directed=directed, expected=expected, at_once=at_once)
    for part in np.array_split(np.arange(edge_index.shape[1]), blocks):
        sorter.add(edge_index[:, part], None if weight is None else weight[part])
    shares: list[float] = []
    notes = sorter.write(out, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert not [path for path in scratch.iterdir() if path.suffix in (".listed", ".reverse")]
    arrays = {path.stem: np.load(path) for path in out.iterdir()}
    return arrays["indptr"], arrays["indices"], arrays.get("weight"), notes


def assert_equal(found, expected):
    for one, other in zip(found[:3], expected[:3], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert found[3] == expected[3]


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("at_once, expected", [(1, 1), (8, 10_000), (50, 1), (10_000, 500)])
@pytest.mark.parametrize(
    "n, e, kind", [(2, 60, "even"), (40, 500, "even"), (40, 500, "hub"), (100_000, 300, "even"), (30, 0, "even")]
)
def test_sort_equals_compress(tmp_path, n, e, kind, at_once, expected, weighted, directed):
    rng = np.random.default_rng(e)
    edge_index = rng.integers(0, n, (2, e))
    if kind == "hub":
        edge_index[1, rng.random(e) < 0.8] = 7
    weight = (
        rng.random(e).astype(np.float32) * np.float32(10) ** rng.integers(-6, 7, e).astype(np.float32)
        if weighted
        else None
    )
    found = sort_on_disk(tmp_path, edge_index, weight, n, directed=directed, at_once=at_once, expected=expected)
    reference = compress(edge_index, weight, n, directed=directed)
    if at_once > 1 or not weighted:
        assert_equal(found, reference)
    else:  # an edge listed more often than fits is summed in pieces: the last bit may differ
        np.testing.assert_array_equal(found[1], reference.indices)
        np.testing.assert_allclose(found[2], reference.weight, rtol=1e-6)


@pytest.mark.parametrize("broken", [None, "weight", "missing"])
def test_a_list_that_is_symmetric_already_keeps_its_weights(tmp_path, broken):
    rng = np.random.default_rng(0)
    one_way = rng.integers(0, 50, (2, 200))
    weight = rng.random(200).astype(np.float32)
    edge_index = np.concatenate([one_way, one_way[::-1]], axis=1)
    weights = np.concatenate([weight, weight])
    if broken == "weight":
        weights[-1] += 1
    elif broken == "missing":
        edge_index, weights = edge_index[:, :-1], weights[:-1]
    found = sort_on_disk(tmp_path, edge_index, weights, 50, directed=False, at_once=30)
    assert_equal(found, compress(edge_index, weights, 50, directed=False))


def test_one_edge_listed_more_often_than_fits_is_still_one(tmp_path):
    edge_index = np.tile([[3], [1]], 1000)
    found = sort_on_disk(tmp_path, edge_index, np.full(1000, 0.5, np.float32), 4, directed=True, at_once=10)
    assert found[0].tolist() == [0, 0, 1, 1, 1]
    assert (found[1].tolist(), found[2].tolist()) == ([3], [500])
    assert found[3][0] == "merged 999 duplicate edges, adding their weights"


def test_weights_are_added_in_the_order_of_the_list(tmp_path):
    """1 + 2^-24 is a tie for float32: four times 2^-54 tips it if added first and is lost if added last."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 40, 2_000)
    edge_index = np.stack([keys % 8, 10 + keys // 8])
    weight = np.full(2_000, 2.0**-54, dtype=np.float32)
    for key in range(0, 40, 2):
        at = np.flatnonzero(keys == key)
        weight[at[:2]] = 1, 2.0**-24
        weight[at[6:]] = 0
    found = sort_on_disk(tmp_path, edge_index, weight, 20, directed=True, at_once=600, expected=2_000)
    reference = compress(edge_index, weight, 20, directed=True)
    assert len(set(reference.weight.tolist())) > 1
    assert_equal(found, reference)
