"""Looks at the embedding while training: the figures of the final evaluation, early, and nothing else changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import trainer
from trainer.callbacks import Callback
from trainer.config import TrainSpec, parse_spec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.evaluation.splits import choose_split
from trainer.evaluation.watch import watch
from trainer.nn.encoder import Encoder
from trainer.run.directory import read_events

BATCHES = {"negatives": "batch", "batch_size": 64, "num_neighbors": [5, 5]}
TIMES = {"seconds", "cpu_seconds", "rss_mb", "watch_seconds"}


def spec(watch_every: int, *, sampling: dict | None = None, held_out: float = 0.1, epochs: int = 7) -> TrainSpec:
    return parse_spec(
        {
            "data": {
                "name": "synthetic",
                "synthetic": {"nodes": 300, "classes": 3, "features": 30, "active_features": 6},
                "held_out_edges": held_out,
            },
            "encoder": {"hidden": 32, "dim": 16, "activation": "rrelu_random"},
            "method": {"inner_steps": 2, "metric": {"hidden": 16}},
            "optimiser": {"epochs": epochs, "lr": 0.005},
            "sampling": sampling or {},
            "evaluation": {"probe_epochs": 80, "cluster_seeds": 1, "figures": False, "watch_every": watch_every},
            "run": {"track": False, "threads": 1},
        }
    )


def epochs(run: Path) -> list[dict]:
    return [event["metrics"] for event in read_events(run) if event["type"] == "epoch"]


def watched(run: Path) -> list[tuple[int, float | None, float | None]]:
    found = enumerate(epochs(run), start=1)
    return [(at, m.get("val_accuracy"), m.get("link_auc")) for at, m in found if "watch_seconds" in m]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{}, BATCHES], ids=["whole", "batches"])
def test_watching_changes_no_bit_of_what_is_learned(tmp_path, sampling):
    plain = trainer.fit(spec(0, sampling=sampling), tmp_path / "plain")
    looked = trainer.fit(spec(1, sampling=sampling), tmp_path / "looked")
    without = [{key: value for key, value in m.items() if key not in TIMES} for m in epochs(plain.directory)]
    others = TIMES | {"val_accuracy", "link_auc"}
    assert [{k: v for k, v in m.items() if k not in others} for m in epochs(looked.directory)] == without
    assert looked.embeddings.read_bytes() == plain.embeddings.read_bytes()
    assert watched(plain.directory) == []
    assert looked.metrics["spec_hash"] == plain.metrics["spec_hash"]


@pytest.mark.parametrize("sampling", [{}, BATCHES], ids=["whole", "batches"])
def test_the_last_look_has_the_figures_of_the_final_evaluation(tmp_path, sampling):
    result = trainer.fit(spec(3, sampling=sampling), tmp_path / "run")
    seen = watched(result.directory)
    assert [epoch for epoch, _, _ in seen] == [3, 6, 7]  # every third, and the last
    judged = result.metrics["eval"]
    assert seen[-1][1:] == (judged["probe"]["val"], judged["links"]["auc"])
    assert result.metrics["train"]["val_accuracy"] == judged["probe"]["val"]
    assert judged["probe"]["val"] > 0.5 < judged["links"]["auc"]
    assert result.metrics["train_seconds"] == pytest.approx(sum(m["seconds"] for m in epochs(result.directory)))
    assert not (result.directory / ".watch").exists()


def test_test_labels_change_no_watched_figure(tmp_path):
    asked = spec(1, epochs=4)
    graph = load(asked.data)
    test = choose_split(graph.y, graph.split, "clean", asked.run.seed).test
    y = graph.y.clone()
    y[test] = (y[test] + 1) % 3
    before, after = (
        trainer.fit(asked, tmp_path / name, graph=given)
        for name, given in (("before", graph), ("after", replace(graph, y=y)))
    )
    assert watched(before.directory) == watched(after.directory)
    assert before.metrics["eval"]["probe"]["test"] != after.metrics["eval"]["probe"]["test"]


def test_callbacks_get_the_figures_with_the_epoch(tmp_path):
    class Collects(Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[int, float | None, float | None]] = []

        def on_epoch(self, event):
            metrics = event["metrics"]
            self.seen.append((event["epoch"], metrics.get("val_accuracy"), metrics.get("link_auc")))

    collector = Collects()
    result = trainer.fit(spec(2, epochs=3), tmp_path / "run", callbacks=[collector])
    assert collector.seen == [(1, None, None), *watched(result.directory)]
    assert [epoch for epoch, _, _ in collector.seen] == [1, 2, 3]


def encoder_for(asked: TrainSpec, graph: Graph) -> Encoder:
    return Encoder(graph.num_features, asked.encoder, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("edges", [True, False])
def test_what_there_is_nothing_to_judge_by_is_left_out(tmp_path, labels, edges):
    asked = spec(1, held_out=0.1 if edges else 0.0)
    graph = load(asked.data)
    if not labels:
        graph = replace(graph, y=torch.where(torch.arange(300) < 15, graph.y, -1))  # too few for a split
    found = watch(encoder_for(asked, graph), graph, tmp_path / "folder", asked)
    expected = {"val_accuracy"} if labels else set()
    expected |= {"link_auc"} if edges else set()
    assert set(found) == (expected | {"watch_seconds"} if expected else set())


def test_the_encoder_stays_in_its_mode_and_what_a_killed_run_left_does_no_harm(tmp_path):
    asked = spec(1)
    graph = load(asked.data)
    encoder, folder = encoder_for(asked, graph), tmp_path / "folder"
    clean = watch(encoder, graph, folder, asked)
    assert encoder.training
    (folder / ".vectors.npy.scratch").mkdir(parents=True)
    (folder / ".vectors.npy.scratch" / "progress.json").write_text('{"key": 1, "sweep": 9')
    np.save(folder / "vectors.npy", np.zeros((300, 16), np.float32))
    again = watch(encoder.eval(), graph, folder, asked)
    assert not encoder.training
    assert not folder.exists()
    assert {**again, "watch_seconds": 0} == {**clean, "watch_seconds": 0}
