"""k-means scores against known clusterings and scikit-learn called by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, fowlkes_mallows_score, normalized_mutual_info_score

from trainer.evaluation.clustering import cluster


def rays(n: int, classes: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that differ by direction only; lengths are random, so that only unit rows are clustered well."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % classes
    z = torch.eye(classes)[y] + noise * torch.randn(n, classes, generator=generator)
    return z * torch.rand(n, 1, generator=generator).add(0.01).mul(50), y


def test_well_separated_directions_score_one_whatever_their_lengths():
    figures = cluster(*rays(200, 4, 0.02), seeds=2)
    for name in ("fmi", "ari", "nmi"):
        assert figures[name]["mean"] == pytest.approx(1)
        assert figures[name]["std"] == pytest.approx(0)
    assert figures["k"] == 4


def test_scores_equal_scikit_learn_by_hand():
    x, y = load_digits(n_class=6, return_X_y=True)
    x, y = x[:400], y[:400]
    figures = cluster(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y), seeds=2)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    runs = [KMeans(6, n_init=10, random_state=seed).fit_predict(unit) for seed in (0, 1)]
    scores = {"fmi": fowlkes_mallows_score, "ari": adjusted_rand_score, "nmi": normalized_mutual_info_score}
    for name, score in scores.items():
        expected = [score(y, run) for run in runs]
        assert figures[name]["mean"] == pytest.approx(np.mean(expected), abs=0.01)
        assert 0.3 < figures[name]["mean"] < 1


def test_random_labels_score_about_zero():
    z, _ = rays(300, 5, 0.1)
    y = torch.randint(5, (300,), generator=torch.Generator().manual_seed(1))
    assert abs(cluster(z, y, seeds=1)["ari"]["mean"]) < 0.03


def test_unlabelled_nodes_change_nothing():
    z, y = rays(120, 3, 0.3)
    outliers = 100 * torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
    mixed = cluster(torch.cat([z, outliers]), torch.cat([y, torch.full((40,), -1)]), seeds=1)
    assert mixed == cluster(z, y, seeds=1)


def test_large_tables_use_mini_batches_and_say_so():
    z, y = rays(600, 3, 0.05)
    figures = cluster(z, y, seeds=1, full_up_to=500)
    assert figures["algorithm"] == "MiniBatchKMeans"
    assert figures["ari"]["mean"] > 0.95
    assert cluster(z, y, seeds=1)["algorithm"] == "KMeans"


@pytest.mark.filterwarnings("error")
def test_collapsed_embeddings_are_reported_not_warned_about():
    figures = cluster(torch.ones(50, 4), torch.arange(50) % 3, seeds=1)
    assert figures["clusters_found"] == 1
    assert figures["ari"]["mean"] == pytest.approx(0)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="two classes"):
        cluster(torch.randn(10, 3), torch.zeros(10, dtype=torch.long), seeds=1)


def test_a_limit_that_is_not_reached_changes_nothing():
    z, y = rays(300, 3, 0.3)
    figures = cluster(z, y, seeds=1, max_nodes=300)
    assert figures == cluster(z, y, seeds=1, max_nodes=10**9, seed=5)
    assert not figures["sampled"]


def test_above_the_limit_a_seeded_sample_scores_like_all_nodes():
    z, y = rays(6_000, 4, 0.45)
    y[::3] = -1
    whole = cluster(z, y, seeds=2)
    part = cluster(z, y, seeds=2, max_nodes=1_500, seed=1)
    assert part["sampled"]
    assert (part["nodes"], part["available"]) == (1_500, 4_000)
    assert part == cluster(z, y, seeds=2, max_nodes=1_500, seed=1)
    assert part != cluster(z, y, seeds=2, max_nodes=1_500, seed=2)
    assert 0.3 < whole["nmi"]["mean"] < 0.95  # else closeness would be no news
    for name in ("fmi", "ari", "nmi"):
        assert part[name]["mean"] == pytest.approx(whole[name]["mean"], abs=0.05)


def test_large_samples_use_mini_batches():
    z, y = rays(3_000, 3, 0.05)
    assert cluster(z, y, seeds=1, max_nodes=1_000, full_up_to=900)["algorithm"] == "MiniBatchKMeans"
    assert cluster(z, y, seeds=1, max_nodes=1_000, full_up_to=1_000)["algorithm"] == "KMeans"
