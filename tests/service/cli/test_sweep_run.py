"""`nml sweep` from end to end: Ray, MLflow and all, as a person would."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def nml(*arguments: str, home) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from service.cli import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "120", "NML_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_smoke_sweep_runs_is_tracked_and_its_best_spec_trains(tmp_path):
    from mlflow import MlflowClient

    home, out = tmp_path / "home", tmp_path / "sweep"
    said = nml("sweep", "--smoke", "--out", str(out), home=home)
    assert "What it finds means nothing" in said.stderr
    assert f"nml train {out / 'best.json'}" in said.stdout
    again = nml("sweep", "--smoke", "--out", str(out), home=home)
    assert "best, trial" in again.stdout, "the same command shows what is there"

    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("nml-gcl")
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    parents = {run.data.tags.get("mlflow.parentRunId") for run in runs.values()} - {None}
    assert len(runs) == 1 + 4
    assert len(parents) == 1
    parent = runs[parents.pop()]
    assert parent.info.status == "FINISHED"
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"best.json", "results.csv", "figures"} <= files

    document = json.loads(nml("train", str(out / "best.json"), "--show-spec", home=home).stdout)
    assert document == json.loads((out / "best.json").read_text())
    trained = nml(
        "train", str(out / "best.json"), "--out", str(tmp_path / "run"), "--set", "run.track=false", home=home
    )
    assert "probe accuracy, test" in trained.stdout
