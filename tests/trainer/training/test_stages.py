"""A run says where its seconds went, and loads nothing that it does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trainer
from trainer.callbacks import Callback
from trainer.config import parse_spec
from trainer.errors import OutOfMemory
from trainer.run.directory import read_events

SMALL = {
    "data": {
        "name": "synthetic",
        "synthetic": {"nodes": 200, "classes": 3, "features": 20, "active_features": 5},
    },
    "encoder": {"hidden": 16, "dim": 8},
    "method": {"inner_steps": 1, "metric": {"hidden": 8}},
    "optimiser": {"epochs": 2},
    "evaluation": {"probe_epochs": 10, "cluster_seeds": 1, "figures": False},
    "run": {"track": False, "threads": 1},
}
RUN = """
import sys
from trainer.__main__ import main
code = main(sys.argv[1:])
print(*(name for name in ("sklearn", "scipy.stats", "pandas", "matplotlib", "mlflow", "ray")
        if name in sys.modules))
sys.exit(code)
"""


def stages(run: Path) -> list[str]:
    return [event["name"] for event in read_events(run) if event["type"] == "stage"]


def test_stages_are_told_as_they_end_and_again_by_each_attempt(tmp_path):
    spec, run = parse_spec(SMALL), tmp_path / "run"
    trainer.fit(spec, run)
    assert stages(run) == ["load", "plan", "train", "export", "evaluate"]
    events = read_events(run)
    assert events[-1]["type"] == "end"
    told = {event["name"]: event for event in events if event["type"] == "stage"}
    assert all(event["seconds"] >= 0 and event["cpu_seconds"] >= 0 for event in told.values())
    epochs = sum(event["metrics"]["cpu_seconds"] for event in events if event["type"] == "epoch")
    assert told["train"]["cpu_seconds"] >= round(epochs, 3) - 0.001
    trainer.fit(spec, run, resume=True)
    assert stages(run) == 2 * ["load", "plan", "train", "export", "evaluate"]


def test_a_process_that_only_trains_loads_only_what_trains(tmp_path):
    """scikit-learn, with SciPy and pandas, and matplotlib take more than a second of processor time."""
    document = SMALL | {"data": {"name": "digits"}, "run": {"track": False, "threads": 1, "export": False}}
    (tmp_path / "spec.json").write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "spec.json"), "--out", str(tmp_path / "run")], text=True,
        capture_output=True, check=False, env={**os.environ, "NML_SUBMITTED": str(time.time() - 1_000)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    assert stages(tmp_path / "run") == ["queued", "start", "load", "plan", "train"]
    queued, start = (event for event in read_events(tmp_path / "run") if event.get("name") in ("queued", "start"))
    assert queued["seconds"] > 900
    assert start["cpu_seconds"] > 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert [line.split("stage ")[1].split(":")[0] for line in log.splitlines() if "stage " in line] == [
        "queued", "start", "load", "plan", "train",
    ]  # fmt: skip


class RunsOut(Callback):
    """There is no memory left when the export begins."""

    def on_phase(self, name: str) -> None:
        raise MemoryError(name)


def test_memory_that_runs_out_after_training_is_a_stage_of_its_own(tmp_path):
    with pytest.raises(OutOfMemory):
        trainer.fit(parse_spec(SMALL), tmp_path / "run", callbacks=[RunsOut()])
    told = stages(tmp_path / "run")
    assert told[:4] == ["load", "plan", "train", "out of memory"]
