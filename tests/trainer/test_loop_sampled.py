"""Runs by batches: planned, stopped in the middle of an epoch, and gone on with as if nothing had happened."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

import trainer
from tests.trainer.held_run import let_go, start, wait_for_event
from trainer.callbacks import Callback
from trainer.config import parse_spec, spec_hash
from trainer.data.datasets import load
from trainer.data.importing.graph import import_graph
from trainer.errors import Cancelled
from trainer.run.directory import read_events

DOCUMENT = {
    "data": {"name": "synthetic", "synthetic": {"nodes": 3_000, "classes": 3, "features": 30, "active_features": 6}},
    "encoder": {"hidden": 32, "dim": 16}, "method": {"inner_steps": 1, "metric": {"hidden": 16}},
    "optimiser": {"epochs": 3, "lr": 0.002},
    "sampling": {"negatives": "batch", "batch_size": 32, "num_neighbors": [3, 3]},
    "evaluation": {"probe_epochs": 20, "cluster_seeds": 1, "figures": False, "max_pairs_nodes": 200},
    "run": {"track": False, "threads": 1},
}  # fmt: skip


def document(**sections):
    return {name: {**DOCUMENT.get(name, {}), **sections.get(name, {})} for name in {*DOCUMENT, *sections}}


def curve(run: Path) -> list[tuple[int, float, float]]:
    events = [event for event in read_events(run) if event["type"] == "epoch"]
    return [(event["epoch"], event["metrics"]["loss"], event["metrics"]["kl"]) for event in events]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["batch", "bank"])
def test_killed_or_stopped_within_an_epoch_a_run_goes_on_to_the_same_numbers(tmp_path, scope):
    spec = document(sampling={"negatives": scope})
    whole = trainer.fit(parse_spec(spec), tmp_path / "whole")
    run = tmp_path / "killed"
    often = document(sampling={"negatives": scope}, run={"checkpoint_minutes": 1e-9})  # after each step
    within = "epoch-0000000-step-000000010"
    process = start(often, run, "--resume", hold=within)
    wait_for_event(run, lambda event: within in event.get("path", ""), process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert max(path.name for path in (run / "checkpoints").iterdir()) == within
    process = start(spec, run, "--resume", hold='"type": "resume"')
    wait_for_event(run, lambda event: event["type"] == "resume", process)
    process.send_signal(signal.SIGTERM)
    let_go(run)
    assert process.wait() == 6, process.stderr.read()
    assert max(path.name for path in (run / "checkpoints").iterdir()) > within, "stopped within an epoch, too"
    process = start(spec, run, "--resume")
    assert process.wait() == 0, process.stderr.read()
    assert curve(run) == curve(whole.directory)
    assert (run / "embeddings" / "vectors.npy").read_bytes() == whole.embeddings.read_bytes()


def test_a_run_says_how_it_was_planned_and_names_what_it_trained(tmp_path):
    spec = parse_spec(document(sampling={"num_neighbors": None}))
    result = trainer.fit(spec, tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["sampling"]["num_neighbors"] == [10, 10]
    assert result.metrics["plan"]["sampling"] == plan["sampling"]
    planned = spec.model_copy(update={"sampling": type(spec.sampling).model_validate(plan["sampling"])})
    assert result.metrics["spec_hash"] == spec_hash(planned) != spec_hash(spec)
    assert json.loads((tmp_path / "run" / "spec.json").read_text())["sampling"]["num_neighbors"] is None


class StopInExport(Callback):
    """Sends this process a SIGTERM as soon as the export begins."""

    def on_phase(self, name):
        if name == "export":
            signal.raise_signal(signal.SIGTERM)


def test_stopped_while_exporting_a_run_can_be_finished_later(tmp_path):
    spec = parse_spec(document(optimiser={"epochs": 1}))
    whole = trainer.fit(spec, tmp_path / "whole")
    run = tmp_path / "run"
    with pytest.raises(Cancelled, match="rows exported"):
        trainer.fit(spec, run, callbacks=[StopInExport()])
    assert not (run / "embeddings" / "manifest.json").exists()
    assert not (run / "metrics.json").exists()
    result = trainer.fit(spec, run, resume=True)
    assert result.embeddings.read_bytes() == whole.embeddings.read_bytes()


class Steps(Callback):
    def __init__(self):
        self.seen = []

    def on_step(self, epoch, step, steps, loss):
        self.seen.append((epoch, step, steps))


def test_long_epochs_tell_how_far_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.training.recorder.SECONDS_BETWEEN_EVENTS", 0.0)
    steps = Steps()
    trainer.fit(parse_spec(document(optimiser={"epochs": 1})), tmp_path / "run", callbacks=[steps])
    assert steps.seen == [(1, step, 94) for step in range(1, 94)]


def test_backends_and_loader_processes_are_choices_of_speed(tmp_path):
    small = {"optimiser": {"epochs": 1}}
    plain = trainer.fit(parse_spec(document(**small)), tmp_path / "plain")
    ahead = trainer.fit(parse_spec(document(**small, sampling={"loader_workers": 1})), tmp_path / "ahead")
    assert curve(plain.directory) == curve(ahead.directory)
    assert plain.metrics["spec_hash"] == ahead.metrics["spec_hash"]


@pytest.mark.parametrize("dense", [True, False])
def test_a_graph_on_disk_trains_as_the_same_graph_in_memory(tmp_path, monkeypatch, dense):
    monkeypatch.setenv("NML_HOME", str(tmp_path))
    synthetic = {"nodes": 500, "classes": 3, "features": 12, "active_features": 9 if dense else 1, "seed": 4}
    spec = document(data={"synthetic": synthetic}, optimiser={"epochs": 2})
    import_graph(parse_spec(spec).data, "mine")
    on_disk = spec | {"data": {"name": "imported", "imported": "mine"}}
    graph = load(parse_spec(on_disk).data)
    assert graph.is_mapped
    assert (graph.x.layout == torch.strided) == dense
    one = trainer.fit(parse_spec(spec), tmp_path / "memory")
    other = trainer.fit(parse_spec(on_disk), tmp_path / "disk")
    assert curve(one.directory) == curve(other.directory)
    assert one.embeddings.read_bytes() == other.embeddings.read_bytes()
