"""Runs that only report: no embeddings and no final evaluation, until the same directory is asked for them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trainer
from trainer.callbacks import Callback
from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.evaluation.evaluate import evaluate_run
from trainer.run.directory import read_events


def spec(*, export: bool) -> TrainSpec:
    return parse_spec(
        {
            "data": {
                "name": "synthetic",
                "synthetic": {"nodes": 300, "classes": 3, "features": 30, "active_features": 6},
                "held_out_edges": 0.1,
            },
            "encoder": {"hidden": 32, "dim": 16},
            "method": {"inner_steps": 1, "metric": {"hidden": 16}},
            "optimiser": {"epochs": 5, "lr": 0.005},
            "evaluation": {"probe_epochs": 50, "cluster_seeds": 1, "figures": False, "watch_every": 2},
            "run": {"track": False, "threads": 1, "export": export},
        }
    )


class Notes(Callback):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_phase(self, name):
        self.told.append(name)

    def on_end(self, result):
        self.told.append("end")


def test_without_export_there_are_checkpoints_and_metrics_alone(tmp_path):
    notes = Notes()
    result = trainer.fit(spec(export=False), tmp_path / "run", callbacks=[notes])
    assert notes.told == ["end"]
    assert not list((tmp_path / "run" / "embeddings").iterdir())
    assert not list((tmp_path / "run" / "figures").iterdir())
    assert not result.embeddings.exists()
    assert (result.epochs, result.stopped_early) == (5, False)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["eval"] is None
    assert 0 < metrics["train"]["val_accuracy"] <= 1
    assert 0 < metrics["train"]["link_auc"] <= 1
    assert read_events(tmp_path / "run")[-1]["type"] == "end"
    assert (tmp_path / "run" / "checkpoints" / "epoch-0000005" / "manifest.json").exists()
    with pytest.raises(InvalidInput, match="no finished embeddings"):
        evaluate_run(tmp_path / "run")


def test_resumed_with_export_the_run_is_exported_and_judged_from_its_last_checkpoint(tmp_path):
    whole = trainer.fit(spec(export=True), tmp_path / "whole")
    trial = trainer.fit(spec(export=False), tmp_path / "trial")
    before = [event for event in read_events(trial.directory) if event["type"] == "epoch"]
    notes = Notes()
    finished = trainer.fit(spec(export=True), tmp_path / "trial", resume=True, callbacks=[notes])
    assert notes.told == ["export", "evaluate", "end"]
    assert [event for event in read_events(trial.directory) if event["type"] == "epoch"] == before  # not trained again
    np.testing.assert_array_equal(np.load(finished.embeddings), np.load(whole.embeddings))
    for section in ("probe", "links", "clustering", "pairs", "geometry", "protocol"):
        assert finished.metrics["eval"][section] == whole.metrics["eval"][section]
    assert finished.metrics["eval"]["probe"]["val"] == trial.metrics["train"]["val_accuracy"]
    assert finished.metrics["eval"]["links"]["auc"] == trial.metrics["train"]["link_auc"]
    assert evaluate_run(trial.directory)["links"] == whole.metrics["eval"]["links"]
