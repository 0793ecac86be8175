"""Whole runs on a real Ray: two workers are one with the doubled batch, also after one of them was killed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import psutil
import pytest

import trainer
from tests.faults.services import cmdline
from trainer.callbacks import Callback
from trainer.config import parse_spec
from trainer.parallel.ray_train import fit_parallel
from trainer.run.directory import read_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DOCUMENT = {
    "data": {"name": "synthetic", "synthetic": {"nodes": 301, "classes": 3, "features": 30, "active_features": 6}},
    "encoder": {"hidden": 24, "dim": 16}, "method": {"inner_steps": 2, "metric": {"hidden": 16}},
    "optimiser": {"epochs": 6, "lr": 0.003},
    "evaluation": {"probe_epochs": 20, "cluster_seeds": 1, "figures": False},
}  # fmt: skip


def spec(workers: int, batch_size: int, **run: object):
    sampling = {"negatives": "batch", "batch_size": batch_size, "num_neighbors": [4, 4]}
    settings = {"workers": workers, "track": False, "dtype": "float64", "checkpoint_every": 2, **run}
    return parse_spec({**DOCUMENT, "sampling": sampling, "run": settings})


def curve(run: Path) -> list[dict[str, float]]:
    events = [event for event in read_events(run) if event["type"] == "epoch"]
    return [{name: event["metrics"][name] for name in ("loss", "nml", "kl", "i_nce")} for event in events]


class KillOneWorker(Callback):
    """Ends one of the training processes, as an out-of-memory killer would, after the third epoch; there they wait."""

    def __init__(self, let_go: Path) -> None:
        self.killed: list[int] = []
        self.starts = 0
        self._let_go = let_go

    def on_start(self, run):
        self.starts += 1

    def on_epoch(self, event):
        if event["epoch"] == 3 and not self.killed:
            family = psutil.Process(os.getpid()).children(recursive=True)
            workers = [child for child in family if "RayTrainWorker" in " ".join(cmdline(child))]
            assert len(workers) == 2
            workers[0].kill()
            self.killed.append(workers[0].pid)
            self._let_go.touch()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return trainer.fit(spec(1, 80), tmp_path_factory.mktemp("alone") / "run")


def test_two_workers_give_the_curve_and_embeddings_of_one_with_the_doubled_batch(tmp_path, alone):
    together = trainer.fit(spec(2, 40), tmp_path / "run")
    for mine, theirs in zip(curve(together.directory), curve(alone.directory), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
    np.testing.assert_allclose(np.load(together.embeddings), np.load(alone.embeddings), rtol=1e-4, atol=1e-6)
    assert together.metrics["eval"]["probe"] is not None


def test_a_run_whose_worker_is_killed_goes_on_from_its_checkpoint_and_finishes(tmp_path, alone, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setitem(fit_parallel.__kwdefaults__, "train", "standins:held_after_three")
    killer = KillOneWorker(tmp_path / "run.let-go")
    result = trainer.fit(spec(2, 40, checkpoint_every=1), tmp_path / "run", callbacks=[killer])
    assert killer.killed
    assert killer.starts == 2
    for mine, theirs in zip(curve(result.directory), curve(alone.directory), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
