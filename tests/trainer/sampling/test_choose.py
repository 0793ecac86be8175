"""Choosing k of d is Floyd's algorithm exactly: the same picks as draw by draw, and all sets equally likely."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from trainer.data.seeds import hashed, hashed_array, key
from trainer.sampling.csr import MAX_DRAWS, choose


def floyd(node: int, degree: int, k: int, key: int) -> list[int]:
    """Draw by draw, in exact integers."""
    picks: list[int] = []
    for draw in range(k):
        size = degree - k + draw + 1
        pick = int(hashed(key, torch.tensor(node * MAX_DRAWS + draw))) * size >> 53
        picks.append(pick if pick not in picks else size - 1)
    return picks


def hash_of(word: int) -> int:
    """Stafford's variant 13, upper 53 bits, in Python's integers."""
    word %= 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return (word ^ word >> 31) >> 11


@pytest.mark.parametrize("name", [0, 1, key(3, "neighbours", 5, 7), 2**63 - 1])
def test_hashes_of_torch_and_numpy_are_those_of_the_definition(name):
    index = torch.randint(-(2**62), 2**62, (50, 7), generator=torch.Generator().manual_seed(0))
    expected = [[hash_of(name + i) for i in row] for row in index.tolist()]
    assert hashed(name, index).tolist() == expected
    assert hashed_array(name, index.numpy().view(np.uint64).copy()).tolist() == expected


@pytest.mark.parametrize(
    "k, degrees", [(1, (2, 3, 50)), (4, (5, 6, 9)), (10, (11, 12, 20, 1_000_000_000)), (40, (41, 45, 80, 3_000))]
)
def test_picks_equal_those_drawn_one_by_one(k, degrees):
    nodes = np.arange(60) * 7_919
    degree = np.resize(np.array(degrees), 60)
    picks = choose(nodes, degree, k, key(1, "test"))
    assert picks.tolist() == [floyd(int(i), int(d), k, key(1, "test")) for i, d in zip(nodes, degree, strict=True)]


def test_nearly_all_of_a_long_list_are_different():
    """d = k + 1 makes the longest chains of draws that give way to each other."""
    picks = choose(np.arange(3), np.full(3, 5_001), 5_000, 1)
    assert all(len(set(row)) == 5_000 for row in picks.tolist())
    assert picks.min() >= 0
    assert picks.max() <= 5_000


@pytest.mark.parametrize("d, k", [(4, 1), (5, 2), (6, 3), (5, 4), (7, 5)])
@pytest.mark.parametrize("vary", ["node", "key"])
def test_all_sets_are_equally_likely(d, k, vary):
    trials = 8_000 if vary == "node" else 2_000
    if vary == "node":
        picks = choose(np.arange(trials), np.full(trials, d), k, key(0, "sets"))
    else:
        one = np.array([17])
        picks = np.concatenate([choose(one, np.array([d]), k, key(0, "sets", trial)) for trial in range(trials)])
    sets = dict.fromkeys(itertools.combinations(range(d), k), 0)
    for row in np.sort(picks, axis=1).tolist():
        sets[tuple(row)] += 1
    assert stats.chisquare(list(sets.values())).pvalue > 1e-3


@pytest.mark.parametrize("d, k", [(11, 10), (50, 10), (1_000, 25)])
def test_each_neighbour_of_a_hub_is_equally_likely(d, k):
    trials = 4_000
    picks = choose(np.arange(trials), np.full(trials, d), k, key(2, "hub"))
    counts = np.bincount(picks.reshape(-1), minlength=d)
    p = k / d  # k of d without replacement: counts vary less than with it
    statistic = ((counts - trials * p) ** 2).sum() / (trials * p * (1 - p)) * (d - 1) / d
    assert 1e-3 < stats.chi2.sf(statistic, d - 1) < 1 - 1e-3
