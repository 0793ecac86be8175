"""A trial is the trainer's loop: what it sends, and how it goes on when it is started again."""

from __future__ import annotations

import contextlib
import json
import threading

import numpy as np
import pytest

from tests.tuner.sweeps import BASE, poison, small_sweep
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.files.atomic import write_json
from trainer.loop import fit
from trainer.run.directory import RunDirectory, read_events
from tuner.config import best_spec, trial_spec
from tuner.data import prepare
from tuner.journal import run_directory
from tuner.space import changed
from tuner.trial import train

CHANGES = {"method.temperature": 0.4}


@pytest.fixture
def sweep(tmp_path):
    def make(spec):
        tmp_path.joinpath("sweep").mkdir()
        write_json(tmp_path / "sweep" / "spec.json", spec.model_dump(mode="json"))
        prepare(spec, tmp_path / "sweep")
        return tmp_path / "sweep"

    return make


def sent_by(sweep, spec, *, until=None):
    """All messages of a trial but signs of life; `until` stops it as Tune would, by an exception out of the report."""
    said = []

    def send(packed):
        said.append(json.loads(packed["message"]))
        if until is not None and until(said[-1]):
            raise SystemExit(0)

    with contextlib.suppress(SystemExit):
        train(sweep, 3, CHANGES, None, send)
    return [message for message in said if message["kind"] != "beat"]  # which a busy machine makes it send


@pytest.mark.parametrize("objective", ["val_accuracy", "link_auc", "i_nml"])
def test_a_trial_reports_what_the_trainer_finds_and_ends_with_the_last_epochs_value(sweep, tmp_path, objective):
    spec = small_sweep(objective=objective, report_every=3)
    running, *reports, final = sent_by(sweep(spec), spec)
    assert running["kind"] == "running"
    assert [report["epoch"] for report in reports] == [3, 6, 8]
    assert (final["state"], final["values"], final["epoch"]) == ("finished", [reports[-1]["value"]], 8)
    alone = fit(trial_spec(spec, CHANGES), tmp_path / "alone")
    assert final["values"] == [alone.metrics["train"][objective]]
    assert 0 < reports[0]["seconds"] < final["seconds"] + 1e-9


def test_the_best_spec_retrains_the_trial_exactly_where_no_edges_were_held_out(sweep, tmp_path):
    spec = small_sweep(objective="val_accuracy")
    final = sent_by(sweep(spec), spec)[-1]
    again = fit(changed(best_spec(spec, CHANGES), {"run.threads": 1}), tmp_path / "best")
    assert final["values"] == [again.metrics["eval"]["probe"]["val"]]


def test_no_trial_of_a_link_auc_sweep_sees_a_held_out_edge(sweep):
    spec = small_sweep(objective="link_auc")
    trained_on = Graph.open(sweep(spec) / "graph")
    whole = load(spec.base.data)
    pairs = set(zip(*trained_on.edge_index.tolist(), strict=True))
    held = set(zip(*trained_on.held_out.tolist(), strict=True))
    assert held, "nothing was held out"
    assert not held & (pairs | {(b, a) for a, b in pairs})
    assert len(pairs) + 2 * len(held) == whole.num_edges


def test_each_seed_of_a_trial_is_a_run_of_its_own_and_their_values_are_sent_together(sweep):
    spec = small_sweep(seeds=2)
    place = sweep(spec)
    said = sent_by(place, spec)
    assert [report["run"] for report in said if report["kind"] == "report"] == [0] * 4 + [1] * 4
    assert len(set(said[-1]["values"])) == 2
    for seed in (0, 1):
        assert len([e for e in read_events(run_directory(place, 3, seed)) if e["type"] == "epoch"]) == 8


@pytest.mark.parametrize("run, epoch", [(0, 4), (1, 6), (1, 8)])
def test_stopped_or_killed_at_a_report_a_trial_goes_on_to_the_same_values(sweep, run, epoch):
    spec = small_sweep(seeds=2)
    place = sweep(spec)
    first = sent_by(place, spec, until=lambda m: m["kind"] == "report" and (m["run"], m["epoch"]) == (run, epoch))
    second = sent_by(place, spec)
    assert second[-1]["state"] == "finished"
    values = {}
    for message in first + second:
        if message["kind"] == "report":
            values.setdefault((message["run"], message["epoch"]), set()).add(message["value"])
    assert sorted(values) == [(r, e) for r in (0, 1) for e in (2, 4, 6, 8)]
    assert all(len(found) == 1 for found in values.values()), "a repeated epoch gave another value"


def test_a_loss_that_is_not_finite_is_sent_as_a_failure_and_not_raised(sweep):
    spec = small_sweep({"optimiser": {"epochs": 8, "lr": 1.0}, "encoder": {"hidden": 16, "dim": 16}})
    place = sweep(spec)
    poison(place / "graph")
    final = sent_by(place, spec)[-1]
    assert (final["kind"], final["state"], final["values"]) == ("final", "failed", [])
    assert final["error"].startswith("invalid: the loss is nan")


def test_a_worker_that_does_not_see_the_sweep_says_so(tmp_path):
    said = sent_by(tmp_path / "on another machine", small_sweep())
    assert said[-1]["state"] == "failed"
    assert "does not see it" in said[-1]["error"]


def test_a_trial_waits_for_one_that_a_killed_driver_left_behind(sweep):
    spec = small_sweep()
    place = sweep(spec)
    asked = trial_spec(spec, CHANGES)
    left_behind = RunDirectory.open(run_directory(place, 3, asked.run.seed), asked, resume=True)
    threading.Timer(1.0, left_behind.close).start()
    assert sent_by(place, spec)[-1]["state"] == "finished"


def test_a_graph_without_labels_is_refused_for_val_accuracy_with_what_to_use_instead(tmp_path):
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    np.savez(tmp_path / "graph.npz", edge_index=edges, x=np.eye(4, dtype=np.float32))
    base = {**BASE, "data": {"name": "files", "files": {"npz": str(tmp_path / "graph.npz")}}}
    (tmp_path / "sweep").mkdir()
    with pytest.raises(InvalidInput, match=r"needs labels.*link_auc"):
        prepare(small_sweep(base, objective="val_accuracy"), tmp_path / "sweep")
    assert prepare(small_sweep(base), tmp_path / "sweep").num_nodes == 4
