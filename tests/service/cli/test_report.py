"""The table of figures says which of them come from samples, and does without those that do not exist."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from service.cli.report import print_quality
from trainer.config import EvaluationSpec
from trainer.evaluate import evaluate


def shown(z: np.ndarray, y: np.ndarray, **limits: int) -> str:
    spec = EvaluationSpec(probe_epochs=5, cluster_seeds=1, **limits)
    console = Console(file=io.StringIO(), width=200)
    print_quality(evaluate(z, y=y, public_split=None, spec=spec, seed=0), console)
    return console.file.getvalue()


@pytest.fixture
def labelled() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = np.arange(2_000) % 3
    return (np.eye(3)[y] + 0.3 * random.normal(size=(2_000, 3))).astype(np.float32), y


def test_samples_are_named_with_their_sizes(labelled):
    text = shown(*labelled, max_probe_nodes=150, max_cluster_nodes=500, max_pairs_nodes=400)
    assert "probe 150 of 200 train and 150 of 200 val nodes" in text
    assert "k-means 500 of 2,000 labelled nodes" in text
    assert "distances 400 of 2,000 labelled nodes" in text
    assert "Seeded samples" not in shown(*labelled)


def test_collapsed_embeddings_have_no_distance_ratio_to_show(labelled):
    _, y = labelled
    assert "distance" not in shown(np.ones((2_000, 3), dtype=np.float32), y, max_pairs_nodes=2_000)
