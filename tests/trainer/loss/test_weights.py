"""Weight figures against loops and scikit-learn; the sentence must say what the figures say."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from trainer.loss.weights import AUC_PAIRS, auc_below, describe_activity, weight_report


def example(n: int, a: int, strength: float, unlabelled: int = 0):
    """Weights softmax(-strength · cos) of clustered points: strength > 0 is what a good metric does."""
    generator = torch.Generator().manual_seed(n)
    y = torch.randint(3, (n,), generator=generator)
    z = torch.randn(3, 6, generator=generator)[y] + 0.4 * torch.randn(n, 6, generator=generator)
    unit = torch.nn.functional.normalize(z.double(), dim=1)
    anchors = torch.randperm(n, generator=generator)[:a]
    cosine = unit[anchors] @ unit.T
    y[torch.randperm(n, generator=generator)[:unlabelled]] = -1
    return n * torch.softmax(-strength * cosine, 1), cosine, anchors, y


@pytest.mark.parametrize("unlabelled", [0, 30])
def test_every_figure_equals_its_definition(unlabelled):
    weights, cosine, anchors, y = example(90, 25, 1.0, unlabelled)
    n = weights.shape[1]
    own, fn, tn = [], [], []
    for row, i in enumerate(anchors.tolist()):
        for j in range(n):
            if i == j:
                own.append(weights[row, j].item())
            elif y[i] >= 0 and y[j] >= 0:
                (fn if y[i] == y[j] else tn).append(weights[row, j].item())
    m = weights.numpy() / n
    expected = {
        "weight_self": np.mean(own),
        "weight_fn": np.mean(fn),
        "weight_tn": np.mean(tn),
        "weight_min": n * m.min(),
        "weight_max": n * m.max(),
        "weight_std": (n * m).std(),
        "weight_kl": np.mean([sum(1 / n * math.log(1 / n / p) for p in row) for row in m]),
        "weight_cosine": np.corrcoef(m.ravel(), cosine.numpy().ravel())[0, 1],
        "weight_auc": roc_auc_score([1] * len(fn) + [0] * len(tn), [1 - w for w in fn + tn]),
        "weight_active": 1.0,
    }
    report = weight_report(weights, cosine, anchors, y)
    assert set(report) == set(expected)
    for key, value in expected.items():
        assert report[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


def test_auc_counts_ties_as_half():
    generator = torch.Generator().manual_seed(0)
    low, high = torch.randint(5, (70,), generator=generator), torch.randint(1, 6, (90,), generator=generator)
    expected = roc_auc_score([1] * 70 + [0] * 90, [-v for v in low.tolist() + high.tolist()])
    assert auc_below(low, high) == pytest.approx(expected)


def test_large_reports_draw_a_fixed_sample_close_to_the_full_auc():
    weights, cosine, anchors, y = example(2_000, 300, 0.3)
    same = (y[anchors][:, None] == y) & (torch.arange(2_000) != anchors[:, None])
    other = y[anchors][:, None] != y
    assert min(int(same.sum()), int(other.sum())) > AUC_PAIRS
    report = weight_report(weights, cosine, anchors, y)
    assert report["weight_auc"] == pytest.approx(auc_below(weights[same], weights[other]), abs=0.005)
    assert report == weight_report(weights, cosine, anchors, y)


def test_intended_reversed_and_uniform_metrics_are_told_apart():
    reports = {strength: weight_report(*example(200, 50, strength)) for strength in (1.0, -1.0, 0.0, 0.005)}
    assert reports[1.0]["weight_fn"] < 1 < reports[1.0]["weight_tn"]
    assert reports[1.0]["weight_auc"] > 0.9
    assert "as intended" in describe_activity(reports[1.0])
    assert reports[-1.0]["weight_auc"] < 0.1
    assert "against its purpose" in describe_activity(reports[-1.0])
    for strength in (0.0, 0.005):
        assert reports[strength]["weight_active"] == 0
        assert describe_activity(reports[strength]).startswith("The metric is inactive")
    assert reports[0.0]["weight_auc"] == pytest.approx(0.5)
    assert reports[0.0]["weight_cosine"] == 0


def test_activity_that_ignores_classes_is_said_to_do_so():
    weights, cosine, anchors, y = example(200, 50, 0.0)
    weights[torch.arange(50), anchors] = 0.5  # only the node itself stands out
    report = weight_report(weights, cosine, anchors, y)
    assert report["weight_active"] == 1
    assert "hardly tells" in describe_activity(report)


@pytest.mark.parametrize("y", [None, torch.full((80,), -1)])
def test_without_labels_the_spread_decides(y):
    weights, cosine, anchors, _ = example(80, 20, 1.0)
    report = weight_report(weights, cosine, anchors, y)
    assert "weight_fn" not in report
    assert report["weight_active"] == 1
    assert "standard deviation" in describe_activity(report)
    flat = weight_report(torch.ones(20, 80), cosine, anchors, y)
    assert flat["weight_active"] == 0
    assert "inactive" in describe_activity(flat)


def test_vanishing_weights_leave_the_divergence_finite():
    weights, cosine, anchors, y = example(50, 10, 1.0)
    weights[0, 3] = 0
    weights[0, 4] = 1e-12
    report = weight_report(weights, cosine, anchors, y)
    assert math.isfinite(report["weight_kl"])
    assert report["weight_min"] == 0
    assert weight_report(weights[:, 4:], cosine[:, 4:], anchors.clamp_max(9), None)["weight_min"] == 1e-12


def test_a_report_of_ten_million_pairs_is_cheap():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(512, 20_000, generator=generator) + 0.5
    anchors = torch.randperm(20_000, generator=generator)[:512]
    y = torch.randint(10, (20_000,), generator=generator)
    times = []
    for _ in range(3):
        started = time.process_time()
        weight_report(weights, weights, anchors, y)
        times.append(time.process_time() - started)
    assert min(times) < 1  # about 0.15 s; sorting all pairs takes more than one
