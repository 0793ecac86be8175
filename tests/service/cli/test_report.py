"""The table of figures says which of them come from samples, and does without those that do not exist."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from service.cli.report import print_quality, print_result
from trainer.evaluation.evaluate import evaluate
from trainer.spec.evaluation import EvaluationSpec


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


def result(quality: dict | None, **train: float) -> dict:
    return {"eval": quality, "train": {"loss": 1.0, **train}, "epoch": 7}


def test_a_run_that_only_reports_says_so_and_how_to_export_it(capsys):
    print_result(result(None), Path("runs/a"), None, 3.0)
    text = capsys.readouterr().out
    assert "run.export is false" in text
    assert "nml train runs/a/spec.json --set run.export=true --resume --out runs/a" in text
    assert "7 epochs in 3 s" in text
    assert "figure" not in text
    print_result(result(None, val_accuracy=0.8125, link_auc=0.91), Path("runs/a"), None, 3.0)
    text = capsys.readouterr().out
    assert "81.25 %" in text
    assert "0.9100" in text


@pytest.mark.parametrize("found", [{"auc": 0.87654}, {"auc": None, "reason": "too dense"}])
def test_held_out_edges_have_a_row_or_a_reason(labelled, found):
    z, y = labelled
    quality = evaluate(z, y=y, public_split=None, spec=EvaluationSpec(probe_epochs=5, cluster_seeds=1), seed=0)
    quality["links"] = found
    quality["protocol"]["links"] = {"sampled": True, "used": 100_000, "available": 500_000}
    console = Console(file=io.StringIO(), width=200)
    print_quality(quality, console)
    text = console.file.getvalue()
    assert ("0.8765" if found["auc"] else "No AUC on held-out edges: too dense") in text
    assert "AUC 100,000 of 500,000 held-out edges" in text


def test_collapsed_embeddings_have_no_distance_ratio_to_show(labelled):
    _, y = labelled
    assert "distance" not in shown(np.ones((2_000, 3), dtype=np.float32), y, max_pairs_nodes=2_000)
