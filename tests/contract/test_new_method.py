"""docs/new-method.md works: its file and its entry, put into a copy of the package, make a method that trains.

The copy stands first on the path of a fresh interpreter, so what runs is what a reader of the page would have.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, sys
from pathlib import Path
import numpy as np
import torch
import trainer
from trainer.config import parse_spec
from trainer.methods import BY_NAME
from trainer.presets import complete

assert Path(trainer.__file__).is_relative_to(sys.argv[1]), trainer.__file__

def spec(epochs):
    return parse_spec(complete({
        "method": "bootstrap", "data": {"name": "synthetic", "synthetic": {"nodes": 80, "features": 20}},
        "encoder": {"hidden": 16, "dim": 8}, "optimiser": {"epochs": epochs}, "sampling": SAMPLING,
        "evaluation": {"probe_epochs": 10, "cluster_seeds": 1, "figures": False},
        "run": {"track": False, "threads": 1, "checkpoint_every": 1},
    }))

class Killed(BaseException):
    pass

def kill(self, learner, step, after=BY_NAME["bootstrap"].after_step):
    after(self, learner, step)
    if step.epoch == 2:
        raise Killed

found = {}
for name, SAMPLING in (("whole", {}), ("batch", {"batch_size": 40, "num_neighbors": [3, 3]})):
    folder = Path(sys.argv[2]) / name
    whole = trainer.fit(spec(2), folder / "whole")
    method = BY_NAME["bootstrap"]
    original, method.after_step = method.after_step, kill
    try:
        trainer.fit(spec(2), folder / "killed")
    except Killed:
        pass
    method.after_step = original
    (left,) = [path.name for path in (folder / "killed" / "checkpoints").iterdir()]
    resumed = trainer.fit(spec(2), folder / "killed", resume=True)
    first, second = (np.load(result.embeddings) for result in (whole, resumed))
    found[name] = {"epochs": whole.epochs, "left": left, "shape": first.shape, "equal": bool((first == second).all()),
                   "finite": bool(np.isfinite(first).all())}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def page(repo_root: Path) -> str:
    return (repo_root / "docs" / "new-method.md").read_text(encoding="utf-8")


def block(page: str, language: str) -> str:
    (only,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(only)


def apply(diff: str, text: str) -> str:
    """Put added lines after the context line above them, or before the one below where they come first."""
    lines, at = text.splitlines(), 0
    waiting: list[str] = []
    for line in diff.splitlines():
        if line.startswith("+"):
            waiting.append(line[1:])
            continue
        if at:
            lines[at:at] = waiting
            at += len(waiting)
            waiting = []
        found = lines.index(line[1:], at)
        lines[found:found] = waiting
        at, waiting = found + len(waiting) + 1, []
    lines[at:at] = waiting
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_the_method_of_the_page_trains_exports_and_resumes(tmp_path, repo_root, page):
    copied = tmp_path / "package"
    shutil.copytree(repo_root / "trainer", copied / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    methods = copied / "trainer" / "methods"
    (methods / "bootstrap.py").write_text(block(page, "python"), encoding="utf-8")
    entries = methods / "__init__.py"
    entries.write_text(apply(block(page, "diff"), entries.read_text(encoding="utf-8")), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(copied), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, str(copied), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        name: {"epochs": 2, "left": "epoch-0000001", "shape": [80, 8], "equal": True, "finite": True}
        for name in ("whole", "batch")
    }


def test_it_is_as_short_as_the_page_promises(page):
    code = [line for line in block(page, "python").splitlines() if line.strip()]
    assert len(code) < 60
    added = [line for line in block(page, "diff").splitlines() if line.startswith("+")]
    assert len(added) == 2, "an import and a name"
