"""Small sweeps for tests, and a way to run them as users do: in a process that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.tuner.held import CALLER
from tuner.config import SweepSpec, parse_sweep
from tuner.journal import TrialRecord, read_sweep

SECONDS = 480  # for what takes a few on an idle machine
BASE: dict[str, Any] = {
    "data": {"name": "synthetic", "synthetic": {"nodes": 200, "classes": 3, "features": 24, "degree": 6}},
    "encoder": {"hidden": 16, "dim": 16},
    "optimiser": {"epochs": 8, "lr": 0.01},
    "method": {"inner_steps": 2, "metric": {"hidden": 16}},
    "evaluation": {"probe_epochs": 50},
    "run": {"track": False},
}
SPACE = {
    "method.temperature": {"kind": "uniform", "low": 0.2, "high": 1},
    "method.reg.coefficient": {"kind": "loguniform", "low": 0.3, "high": 300},
}


def small_sweep(base: dict[str, Any] | None = None, **fields: Any) -> SweepSpec:
    """Trials of about a second; `base` replaces whole sections of BASE."""
    document = {"base": BASE | (base or {}), "space": SPACE, "trials": 4, "concurrency": 1, "report_every": 2}
    return parse_sweep(document | {"objective": "i_nml", "scheduler": {"grace_epochs": 2, "reduction": 2}} | fields)


def start(spec: SweepSpec, out: Path, root: Path, **options: Any) -> subprocess.Popen[bytes]:
    """`python -m tuner SPEC --out OUT`: the same command again and again."""
    return _start(["-m", "tuner"], spec, out, root, **options)


def start_held(spec: SweepSpec, out: Path, root: Path) -> subprocess.Popen[bytes]:
    """The same, with trials that wait where tests.tuner.held.hold says."""
    return _start(["-c", CALLER], spec, out, root)


def _start(how: list[str], spec: SweepSpec, out: Path, root: Path, **options: Any) -> subprocess.Popen[bytes]:
    file = out.with_suffix(".json")
    file.write_text(spec.model_dump_json(), encoding="utf-8")
    command = [sys.executable, *how, str(file), "--out", str(out)]
    return subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, **options)


def finish(process: subprocess.Popen[bytes]) -> int:
    """The exit code; what the process said is shown if a test fails."""
    _, said = process.communicate(timeout=SECONDS)
    sys.stderr.write(said.decode(errors="replace"))
    return process.returncode


def run(spec: SweepSpec, out: Path, root: Path, **options: Any) -> int:
    return finish(start(spec, out, root, **options))


def events(out: Path) -> list[dict[str, Any]]:
    """The complete lines of the journal so far."""
    try:
        text = (out / "events.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_until(
    out: Path, seen: Callable[[list[dict[str, Any]]], bool], process: subprocess.Popen[bytes] | None = None
) -> list[dict[str, Any]]:
    """The journal, as soon as it satisfies `seen`."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = events(out)
        if seen(found):
            return found
        assert process is None or process.poll() is None, process.communicate()[1].decode(errors="replace")
        time.sleep(0.02)
    raise AssertionError(f"not seen within {SECONDS} s: {events(out)[-5:]}")


def count(found: list[dict[str, Any]], kind: str) -> int:
    return sum(event["type"] == kind for event in found)


def outline(out: Path) -> list[tuple[Any, ...]]:
    """All that a sweep tried, heard and decided, without times."""

    def of(trial: TrialRecord) -> tuple[Any, ...]:
        reports = [(report.run, report.epoch, report.value, report.decision) for report in trial.reports]
        return trial.number, trial.origin, trial.changes, reports, trial.state, trial.value, trial.epoch

    _, trials, _ = read_sweep(out)
    return [of(trials[number]) for number in sorted(trials)]


def poison(graph: Path) -> None:
    """Give a stored graph a feature that no import would let through, so that the loss is NaN from the first epoch.

    Who opens the graph sees all of that or nothing.
    """
    dense = graph / "x.npy"
    file = dense if dense.exists() else next(graph.glob("x*values*.npy"))
    array = np.load(file)
    array[0] = np.nan
    poisoned = graph.with_suffix(".poisoned.npy")
    np.save(poisoned, array)
    os.replace(poisoned, file)
