"""What each method says it needs beside the encoder, against real runs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.trainer.planning.test_estimate import RUN
from trainer.presets import merged, preset_document

RUNS = [  # large enough for the formulas to matter beside the libraries
    ("bgrl", {"encoder": {"hidden": 256, "dim": 256}, "sampling": {"negatives": "graph"}}),
    ("bgrl", {"encoder": {"hidden": 256, "dim": 256}, "sampling": {"batch_size": 4_096, "num_neighbors": [5, 5]}}),
    ("mvgrl", {"encoder": {"dim": 256}}),
    ("localgcl", {"encoder": {"hidden": 256, "dim": 512}, "method": {"sums": "exact"}, "sampling": {"keep_mb": 0}}),
    ("localgcl", {"encoder": {"hidden": 256, "dim": 512}, "method": {"sums": "random", "features": 1_024}}),
    ("fastrp", {"encoder": {"dim": 3_072}}),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, over", RUNS)
def test_a_run_takes_what_was_estimated_within_a_factor_of_one_and_a_half(tmp_path, name, over):
    document = merged(preset_document(name, "synthetic"), {
        "data": {"synthetic": {"nodes": 15_000, "features": 64}},
        "optimiser": {"epochs": 1 if name == "fastrp" else 2, "warmup_epochs": 0},
        "evaluation": {"probe_epochs": 5, "cluster_seeds": 1, "max_pairs_nodes": 2_000, "max_cluster_nodes": 2_000,
                       "max_probe_nodes": 2_000, "figures": False},
        "run": {"track": False, "threads": 1, "diagnose_every": 0},
    })  # fmt: skip
    command = [sys.executable, "-c", RUN, json.dumps(merged(document, over)), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    measured, told = (float(number) for number in done.stdout.split())
    assert 1 / 1.5 < told / measured < 1.5, f"{told:.0f} MB estimated, {measured:.0f} measured"
    libraries, taken = 525, 485  # MB: trainer.planning.estimate, and a small run that does not load matplotlib
    assert 1 / 2 < (told - libraries) / (measured - taken) < 2, f"{told:.0f} MB estimated, {measured:.0f} measured"
