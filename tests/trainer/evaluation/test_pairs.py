"""Tiled pair figures against brute force over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.evaluation.pairs import BIN_WIDTH, BINS, count_cosines, median_distance, pair_statistics


def example(n: int, unlabelled: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    y = torch.randint(3, (n,), generator=generator)
    z = torch.randn(3, 8, generator=generator)[y] + torch.randn(n, 8, generator=generator)
    y[torch.randperm(n, generator=generator)[:unlabelled]] = -1
    return z, y


def brute_force(z: torch.Tensor, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """1 - cos of all FN pairs and of all TN pairs, by two loops."""
    u = z.double().numpy()
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    fn, tn = [], []
    for i in range(len(u)):
        for j in range(i):
            if y[i] >= 0 and y[j] >= 0:
                (fn if y[i] == y[j] else tn).append(1 - u[i] @ u[j])
    return np.array(fn), np.array(tn)


@pytest.mark.parametrize("n, unlabelled, tile", [(97, 0, 10), (60, 20, 512), (64, 0, 64), (33, 5, 1), (40, 0, 39)])
def test_figures_equal_brute_force_up_to_one_bin(n, unlabelled, tile):
    z, y = example(n, unlabelled)
    fn, tn = brute_force(z, y)
    found = pair_statistics(z, y, tile=tile)
    assert (found["fn_pairs"], found["tn_pairs"]) == (len(fn), len(tn))
    assert found["median_distance_fn"] == pytest.approx(np.median(fn), abs=BIN_WIDTH)
    assert found["median_distance_tn"] == pytest.approx(np.median(tn), abs=BIN_WIDTH)
    assert found["distance_ratio"] == pytest.approx(100 * np.median(fn) / np.median(tn), abs=0.02)
    assert found["nodes"] == n - unlabelled
    assert not found["sampled"]


def test_histograms_are_densities_of_the_cosines():
    z, y = example(150)
    histogram = pair_statistics(z, y)["histogram"]
    for kind, distances in zip(("fn", "tn"), brute_force(z, y), strict=True):
        bins = len(histogram[kind])
        expected, _ = np.histogram(1 - distances, bins=bins, range=(-1, 1), density=True)
        np.testing.assert_allclose(histogram[kind], expected, atol=3 * bins / 2 / len(distances))  # edge cases
        assert sum(histogram[kind]) * 2 / bins == pytest.approx(1)


def test_random_embeddings_have_ratio_near_100_and_classes_pull_it_down():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (500,), generator=generator)
    noise = torch.randn(500, 32, generator=generator)
    assert pair_statistics(noise, y)["distance_ratio"] == pytest.approx(100, abs=2)
    assert pair_statistics(noise + 2 * torch.randn(4, 32, generator=generator)[y], y)["distance_ratio"] < 50


def test_above_the_limit_a_seeded_sample_is_used_and_named():
    z, y = example(900)
    whole = pair_statistics(z, y)
    sample = pair_statistics(z, y, max_nodes=300, seed=1)
    assert sample["sampled"]
    assert sample["nodes"] == 300
    assert sample == pair_statistics(z, y, max_nodes=300, seed=1)
    assert sample != pair_statistics(z, y, max_nodes=300, seed=2)
    assert sample["distance_ratio"] == pytest.approx(whole["distance_ratio"], rel=0.1)


def test_extreme_cosines_fall_into_the_outer_bins():
    unit = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    fn, tn = count_cosines(unit, torch.tensor([0, 0, 1]), tile=2)
    assert fn[BINS - 1] == fn.sum() == 1
    assert tn[0] == tn.sum() == 2


@pytest.mark.parametrize("values", [[0.3], [0.1, 0.9], [0.1, 0.2, 0.9], [-1.0, 0.5, 0.5, 0.7]])
def test_median_of_odd_and_even_counts(values):
    index = ((torch.tensor(values) + 1) * BINS / 2).long()
    expected = 1 - np.median(values)
    assert median_distance(torch.bincount(index, minlength=BINS)) == pytest.approx(expected, abs=BIN_WIDTH)


def test_missing_kinds_of_pairs_give_no_ratio():
    z = torch.randn(6, 3)
    alone = pair_statistics(z, torch.arange(6))  # six classes of one node: no false negatives
    assert alone["distance_ratio"] is None
    assert alone["median_distance_fn"] is None
    assert sum(alone["histogram"]["fn"]) == 0
    assert pair_statistics(z, torch.zeros(6, dtype=torch.long))["distance_ratio"] is None


def test_collapsed_embeddings_give_no_ratio():
    assert pair_statistics(torch.ones(20, 3), torch.arange(20) % 2)["distance_ratio"] is None


def test_a_memory_map_gives_the_figures_of_the_array(tmp_path):
    z, y = example(400, unlabelled=30)
    np.save(tmp_path / "z.npy", z.numpy())
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    for most in (100, 400):
        found = pair_statistics(mapped, y, max_nodes=most)
        assert found == pair_statistics(z, y, max_nodes=most)
        assert (found["nodes"], found["available"]) == (min(most, 370), 370)
