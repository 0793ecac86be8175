"""Memory that really runs out in the middle of a run: the kernel refuses it, and the run goes on with less.

A limit on the address space stands for a machine that is too small. It is set once everything is imported, and lifted
for export and evaluation, which are not what these tests are about.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainer
from trainer.config import parse_spec
from trainer.run.directory import read_events

pytestmark = pytest.mark.slow

RUN = """
import json, resource, sys
from trainer.callbacks import Callback
from trainer.config import parse_spec
from trainer.loop import fit

spec, out, after_epoch, room_mb = sys.argv[1:]

class LittleRoom(Callback):
    limited = False

    def on_start(self, run):
        self.limit(0)

    def on_checkpoint(self, epoch, path):
        self.limit(epoch)

    def limit(self, epoch):
        if epoch == int(after_epoch) and not self.limited:
            self.limited = True
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + int(room_mb) * 2**20, resource.RLIM_INFINITY))

    def on_phase(self, name):
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

fit(parse_spec(json.loads(spec)), out, callbacks=[LittleRoom()])
"""


def document(synthetic: dict, hidden: int, epochs: int, **sampling) -> dict:
    return {
        "data": {"name": "synthetic", "synthetic": {"features": 16, "active_features": 3, **synthetic}},
        "encoder": {"hidden": hidden, "dim": 8},
        "method": {"inner_steps": 1, "metric": {"hidden": 8}},
        "optimiser": {"epochs": epochs},
        "sampling": sampling,
        "evaluation": {"probe_epochs": 5, "cluster_seeds": 1, "figures": False},
        "run": {"track": False, "threads": 1, "checkpoint_every": 1},
    }


def run_with_little_room(spec: dict, run: Path, *, after_epoch: int, room_mb: int) -> str:
    """Train; returns the log."""
    command = [sys.executable, "-c", RUN, json.dumps(spec), str(run), str(after_epoch), str(room_mb)]
    # a threshold that stays where it is: what is freed leaves the address space, whatever was freed before it
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    log = (run / "log.txt").read_text()
    assert done.returncode == 0, f"{log}\n{done.stderr[-2000:]}"
    return log


def epochs(run: Path) -> dict[int, float]:
    return {event["epoch"]: event["metrics"]["loss"] for event in read_events(run) if event["type"] == "epoch"}


def test_a_tile_that_does_not_fit_is_halved_and_gives_the_curve_of_the_small_one(tmp_path):
    nodes = 4_000  # a tile of that side takes 64 MB, and four are needed
    asked = document({"nodes": nodes}, 16, 2, negatives="graph", tile=nodes, keep_mb=2_000)
    log = run_with_little_room(asked, tmp_path / "run", after_epoch=0, room_mb=160)
    assert "memory ran out" in log
    assert "so tile 2000, keep_mb 0" in log
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    tile = metrics["plan"]["sampling"]["tile"]
    assert tile <= nodes // 2
    assert f"tile {tile}" in metrics["plan"]["reason"]
    small = asked | {"sampling": asked["sampling"] | {"tile": tile, "keep_mb": 0}}
    trainer.fit(parse_spec(small), tmp_path / "small")
    assert epochs(tmp_path / "run") == epochs(tmp_path / "small")
    assert len(epochs(tmp_path / "run")) == 2


def test_a_batch_that_does_not_fit_is_halved_and_the_run_goes_on_from_its_last_checkpoint(tmp_path):
    nodes = 3_000  # one layer of one view takes 49 MB, so it is given back to the system after a step
    asked = document(
        {"nodes": nodes, "degree": 1}, 4_096, 4,
        negatives="batch", batch_size=nodes, num_neighbors=[1, 1], tile=512, keep_mb=50,
    )  # fmt: skip
    log = run_with_little_room(asked, tmp_path / "run", after_epoch=2, room_mb=170)
    assert "going on from the last checkpoint" in log
    assert "so tile 256, keep_mb 0" in log
    assert f"so batch_size {nodes // 2}" in log
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["plan"]["sampling"]["batch_size"] <= nodes // 2
    assert f"memory ran out, so batch_size {nodes // 2}" in metrics["plan"]["reason"]
    resumed = [event["epoch"] for event in read_events(tmp_path / "run") if event["type"] == "resume"]
    assert resumed[0] == 2
    assert list(epochs(tmp_path / "run")) == [1, 2, 3, 4]
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert len(plan["previous"]) >= 1
    assert plan["spec_hash"] == metrics["spec_hash"]
