"""Embeddings that do not fit are judged and drawn in the memory of their samples, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

NODES, DIM, CLASSES = 400_000, 128, 5
TABLE_MB = NODES * DIM * 4 / 2**20  # 195
# Held at once: two pieces of 8 MiB, the pages of one and its float64 copy (40 MB), arrays of 8 bytes per node for
# labels, split and draws (3 MB each), and samples of a few MB. 49 to 64 MB were measured in seven runs; the table's
# pages or a copy of it would break the bound.
BOUND_MB = 100

JUDGE = """
import json, sys
from pathlib import Path
import numpy as np
from trainer.spec.evaluation import EvaluationSpec
from trainer.evaluation.evaluate import evaluate
from trainer.evaluation.figures import draw_all

def status_mb(key):  # VmHWM is the peak of this process alone; ru_maxrss would start at the parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

directory = Path(sys.argv[1])
z, y = (np.load(directory / name, mmap_mode="r") for name in ("vectors.npy", "y.npy"))
spec = EvaluationSpec(
    probe_epochs=50, cluster_seeds=1, max_probe_nodes=2_000, max_cluster_nodes=4_000, max_pairs_nodes=2_000
)
few = [np.array(part[:5_000]) for part in (z, y)]
evaluate(few[0], y=few[1], public_split=None, spec=spec, seed=0)  # libraries load parts of themselves at first use
draw_all(directory / "figures", history=[], before=few[0], after=few[0], y=few[1], max_points=200)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
before = status_mb("VmRSS")
result = evaluate(z, y=y, public_split=None, spec=spec, seed=0)
judged = status_mb("VmHWM")
draw_all(directory / "figures", history=[], before=z, after=z, y=y, max_points=200)
growth = {"evaluate": judged - before, "figures": status_mb("VmHWM") - before}
print(json.dumps({"growth_mb": growth, "result": result}))
"""


@pytest.fixture
def planted(tmp_path) -> Path:
    """A table of NODES × DIM written by pieces; classes are shifts along their own axis."""
    random = np.random.default_rng(0)
    y = random.integers(CLASSES, size=NODES)
    np.save(tmp_path / "y.npy", y)
    shape = (NODES, DIM)
    z = np.lib.format.open_memmap(tmp_path / "vectors.npy", mode="w+", dtype=np.float32, shape=shape)
    for start in range(0, NODES, 50_000):
        label = y[start : start + 50_000]
        z[start : start + 50_000] = random.standard_normal((len(label), DIM), dtype=np.float32)
        z[np.arange(start, start + len(label)), label] += 6
    z.flush()
    return tmp_path


@pytest.mark.slow
def test_a_mapped_table_is_judged_and_drawn_without_being_loaded(planted, repo_root):
    finished = subprocess.run(
        [sys.executable, "-c", JUDGE, str(planted)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(repo_root)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert max(report["growth_mb"].values()) < BOUND_MB < TABLE_MB, report["growth_mb"]
    result = report["result"]
    assert result["probe"]["used"] == {"train": 2_000, "val": 2_000, "test": NODES * 8 // 10}
    assert result["probe"]["test"] > 0.95
    assert result["clustering"]["nmi"]["mean"] > 0.9
    assert result["geometry"]["mean_norm"] == pytest.approx((DIM + 36) ** 0.5, rel=0.01)
    assert len(list((planted / "figures").iterdir())) == 2
