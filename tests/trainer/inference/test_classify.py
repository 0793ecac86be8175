"""Classes from a few labels: as good as scikit-learn's, judged honestly, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from trainer.errors import InvalidInput
from trainer.inference import effort as module
from trainer.inference.classify import classify
from trainer.inference.effort import MOST_FEW, MOST_PASS, PER_CLASS, effort, most_rows, pass_cost
from trainer.inference.logistic import Scaling, fit


def clouds(n: int = 600, dim: int = 16, classes: int = 3, apart: float = 2.0, seed: int = 0):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, n)
    centres = random.standard_normal((classes, dim)) * apart / np.sqrt(dim) * 2
    return (centres[y] + random.standard_normal((n, dim))).astype(np.float32) * 7 + 3, y


def test_the_fit_is_that_of_scikit_learn():
    import torch

    x, y = clouds(apart=1.0)
    decay = 0.01
    reference = LogisticRegression(C=1 / (decay * len(y)), max_iter=1_000, tol=1e-8).fit(x, y)
    weight = fit(torch.from_numpy(x).double(), torch.from_numpy(y), 3, decay).numpy()
    assert np.abs(weight[:-1].T - reference.coef_).max() < 1e-3 * np.abs(reference.coef_).max()
    scaled = Scaling.of(torch.from_numpy(x))(torch.from_numpy(x))
    assert abs(float(scaled.mean())) < 1e-5
    assert abs(float(scaled.square().mean()) - 1) < 1e-4


def test_predictions_are_those_of_scikit_learn_on_an_easy_problem(tmp_path):
    x, y = clouds(apart=4.0)
    np.save(tmp_path / "vectors.npy", x)
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    rows = np.random.default_rng(1).choice(len(y), 60, replace=False)
    figures, found = classify(vectors, rows, y[rows], 3)
    reference = LogisticRegression(max_iter=1_000).fit(x[rows], y[rows])
    others = np.setdiff1d(np.arange(len(y)), rows)
    assert found["rows"].tolist() == others.tolist()
    assert found["classes"].dtype == np.int32
    assert (found["classes"] == reference.predict(x[others])).mean() > 0.97
    assert (found["classes"] == y[others]).mean() > 0.95
    assert abs(figures["accuracy"] - (found["classes"] == y[others]).mean()) < 0.07
    assert (found["confidence"] > 1 / 3).all()
    assert (found["confidence"] <= 1).all()
    assert figures["folds"] == 5
    assert "5 stratified folds" in figures["protocol"]


def test_shuffled_labels_are_reported_as_no_better_than_chance():
    x, y = clouds(n=800, dim=64, classes=4)
    shuffled = np.random.default_rng(2).permutation(y)
    figures, _ = classify(x, np.arange(400), shuffled[:400], 4, predict=np.arange(2))
    assert 0.15 < figures["accuracy"] < 0.36
    assert figures["accuracy"] < figures["majority"] + 0.08


def test_confidence_means_what_it_says():
    x, y = clouds(n=3_000, apart=1.0)
    _, found = classify(x, np.arange(500), y[:500], 3)
    right = found["classes"] == y[500:]
    assert abs(found["confidence"].mean() - right.mean()) < 0.05
    sure = found["confidence"] > np.median(found["confidence"])
    assert right[sure].mean() > right[~sure].mean()


def test_a_seed_fixes_everything_and_the_order_of_labels_nothing():
    x, y = clouds(apart=0.7)
    rows = np.arange(80)
    turned = np.random.default_rng(0).permutation(80)
    first, again = classify(x, rows, y[:80], 3, seed=5), classify(x, turned, y[turned], 3, seed=5)
    assert first[0] == again[0]
    assert all(first[1][key].tobytes() == again[1][key].tobytes() for key in first[1])
    assert classify(x, rows, y[:80], 3, seed=6)[0]["accuracy"] != first[0]["accuracy"]


def test_few_labels_are_learned_from_but_not_judged():
    x, y = clouds(apart=6.0)
    rows = np.array([int((y == label).argmax()) for label in range(3)])
    figures, found = classify(x, rows, y[rows], 3)
    assert figures["accuracy"] is None
    assert "single example" in figures["reason"]
    assert (found["classes"] == np.delete(y, rows)).mean() > 0.9


def test_classes_without_examples_are_never_predicted_and_repeated_labels_count_once():
    x, y = clouds(apart=4.0, classes=2)
    rows = np.arange(40)
    once = classify(x, rows, y[:40] * 500, 501, predict=np.array([99, 3, 99]))
    twice = classify(x, np.tile(rows, 2), np.tile(y[:40], 2) * 500, 501, predict=np.array([99, 3, 99]))
    assert once[0] == twice[0]
    assert set(once[1]["classes"].tolist()) <= {0, 500}
    assert once[1]["rows"].tolist() == [99, 3, 99]
    assert once[1]["confidence"][0] == once[1]["confidence"][2]


@pytest.mark.parametrize("work, most, folds", [(1_000_000, 361, 5), (500, 12, 2)])
def test_of_very_many_labels_a_sample_is_used_and_told(monkeypatch, work, most, folds):
    monkeypatch.setattr(module, "MOST_PASS", work)
    x, y = clouds(n=2_000, apart=4.0)
    figures, found = classify(x, np.arange(1_500), y[:1_500], 3)
    assert figures["used"] <= most
    assert f"{figures['used']} of 1500 labels" in figures["protocol"]
    assert figures["folds"] == folds
    assert (found["classes"] == y[1_500:]).mean() > 0.7


@pytest.mark.parametrize(
    "rows, labels, classes, predict, message",
    [
        ([0, 1], [0], 2, None, "one label per row"),
        ([0], [0], 2, None, "give 2 to 100,000"),
        ([0, 1], [0, 0], 2, None, "one class; give examples of at least 2"),
        ([0, 1], [0, 1], 1, None, "there may be 2 to 1,000"),
        ([0, 1], [0, 1], 1_001, None, "there may be 2 to 1,000"),
        ([0, 600], [0, 1], 2, None, r"rows\[1\] is 600"),
        ([0, -1], [0, 1], 2, None, r"rows\[1\] is -1"),
        ([0, 1], [0, 2], 2, None, r"labels\[1\] is 2"),
        ([7, 1, 7], [0, 1, 1], 2, None, "labels 0 and 2 are of the same node"),
        ([0, 1], [0, 1], 2, [5, 600], r"predict\[1\] is 600"),
    ],
)
def test_bad_requests_are_refused_by_position(rows, labels, classes, predict, message):
    x, _ = clouds()
    with pytest.raises(InvalidInput, match=message):
        classify(
            x, np.array(rows), np.array(labels), classes, predict=None if predict is None else np.array(predict)
        )  # fmt: skip


def test_vectors_that_are_all_the_same_give_an_honest_guess():
    figures, found = classify(np.ones((50, 4), np.float32), np.arange(20), np.arange(20) % 2, 2)
    assert figures["accuracy"] == 0.5
    assert np.allclose(found["confidence"], 0.5, atol=1e-3)


@pytest.mark.parametrize("dim", [1, 64, 512, 2_048, 8_192])
@pytest.mark.parametrize("classes", [2, 7, 100, 400, 1_000])
def test_the_work_is_bounded_whatever_is_asked_for(dim, classes):
    """Passes are counted here as they are made: a fit for every decay and fold, or one each."""
    rows = most_rows(dim, classes)
    assert rows >= PER_CLASS * classes
    if (dim, classes) == (8_192, 1_000):
        with pytest.raises(InvalidInput, match="fewer classes"):
            effort(rows, dim, classes)
        return
    spent = effort(rows, dim, classes)
    cost = pass_cost(rows, dim, classes)
    if spent.is_heavy:
        folds = 2 * pass_cost(rows // 2, dim, classes) if spent.judges else 0
        assert 1.2 * spent.iterations * (cost + folds) <= 1.2 * MOST_FEW
        assert spent.iterations >= 15
    else:
        assert (cost, spent.iterations) <= (MOST_PASS, 100)


def test_many_classes_are_learned_with_fewer_iterations_and_at_last_not_judged(monkeypatch):
    x, y = clouds(n=400, dim=16, classes=20, apart=6.0)
    monkeypatch.setattr(module, "MOST_PASS", 1)
    for most, folds in ((10**9, 2), (12_000_000, 0)):
        monkeypatch.setattr(module, "MOST_FEW", most)
        figures, found = classify(x, np.arange(300), y[:300], 20)
        assert (figures["folds"], figures["accuracy"] is None) == (folds, folds == 0)
        assert (found["classes"] == y[300:]).mean() > 0.7
    assert "take too long" in figures["reason"]
    monkeypatch.setattr(module, "MOST_FEW", 10**6)
    with pytest.raises(InvalidInput, match="20 classes of vectors with 16 values"):
        classify(x, np.arange(300), y[:300], 20)


def test_more_predictions_than_can_be_made_in_time_are_refused_with_their_number(monkeypatch):
    monkeypatch.setattr(module, "MOST_PREDICTED", 100 * (3 + 16) * (16 + 128) // 2)
    x, y = clouds()
    with pytest.raises(InvalidInput, match=r"560 nodes are asked for; .* 100 can be told at a time"):
        classify(x, np.arange(40), y[:40], 3)
    classify(x, np.arange(40), y[:40], 3, predict=np.arange(100))
