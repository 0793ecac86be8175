"""A sweep on a real Ray: what becomes of trials that die, fall silent or fail, of its time and of a cluster's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.tuner.held import hold
from tests.tuner.sweeps import (
    SECONDS,
    count,
    events,
    finish,
    outline,
    poison,
    run,
    small_sweep,
    start,
    start_held,
    wait_until,
)
from trainer.config import parse_spec
from tuner.journal import read_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * SECONDS)]
TOKEN = "a-token-of-these-tests-" + "0" * 16


def running_in(found, number):
    """The process of a trial, once it reports."""
    pids = [event["pid"] for event in found if event["type"] == "running" and event["number"] == number]
    reports = [event for event in found if event["type"] == "report" and event["number"] == number]
    return pids[-1] if pids and reports else None


def test_a_sweep_leaves_its_table_its_figures_and_a_best_spec_that_can_be_trained(tmp_path, repo_root):
    spec = small_sweep(objective="val_accuracy", concurrency=2)
    assert run(spec, tmp_path / "sweep", repo_root) == 0
    document = json.loads((tmp_path / "sweep" / "best.json").read_text())
    best = parse_spec(document)
    assert best.run.export
    assert best.data.held_out_edges == 0
    _, trials, lines = read_sweep(tmp_path / "sweep")
    assert [trials[number].is_final for number in range(4)] == [True] * 4
    assert lines[-1]["state"] == "succeeded"
    assert best.method.temperature == trials[lines[-1]["best"]].changes["method.temperature"]
    figures = {file.name for file in (tmp_path / "sweep" / "figures").iterdir()}
    assert {"history.png", "parallel.html", "objective-vs-temperature.png"} <= figures
    assert not list((tmp_path / "sweep").glob(".ray*"))
    assert not list((tmp_path / "sweep" / "trials").rglob("vectors.npy")), "trials must not export"


def test_a_trial_whose_process_dies_is_tried_again_from_its_checkpoint_and_nothing_else_changes(tmp_path, repo_root):
    spec = small_sweep(scheduler={"kind": "none"}, base={"run": {"track": False, "checkpoint_every": 1}})
    assert run(spec, tmp_path / "calm", repo_root) == 0
    held = hold(tmp_path / "sweep", 1, "report")
    process = start_held(spec, tmp_path / "sweep", repo_root)
    found = wait_until(tmp_path / "sweep", lambda found: running_in(found, 1) is not None, process)
    os.kill(running_in(found, 1), signal.SIGKILL)
    held.unlink()
    assert finish(process) == 0
    assert count(events(tmp_path / "sweep"), "retry") == 1
    assert outline(tmp_path / "sweep") == outline(tmp_path / "calm")


def test_a_trial_that_dies_or_falls_silent_is_marked_and_the_sweep_goes_on(tmp_path, repo_root):
    spec = small_sweep(scheduler={"kind": "none"}, trials=4, retries=0, silence_minutes=0.5)
    out = tmp_path / "sweep"
    for number in range(2):
        hold(out, number, "report")  # they give signs of life several times a second
    process = start_held(spec, out, repo_root)
    found = wait_until(out, lambda found: running_in(found, 0) is not None, process)
    os.kill(running_in(found, 0), signal.SIGKILL)
    found = wait_until(out, lambda found: running_in(found, 1) is not None, process)
    os.kill(running_in(found, 1), signal.SIGSTOP)
    assert finish(process) == 0
    _, trials, _ = read_sweep(out)
    assert [trials[number].state for number in range(4)] == ["failed", "failed", "finished", "finished"]
    assert not psutil.pid_exists(running_in(found, 1)), "stopped, and still there"
    assert "its process died" in trials[0].error
    assert "said nothing for 0.5 minutes" in trials[1].error


def test_a_sweep_none_of_whose_trials_succeeds_fails_and_says_what_the_first_one_said(tmp_path, repo_root):
    out = tmp_path / "sweep"
    held = hold(out, 0, "begin")
    process = start_held(small_sweep(trials=2), out, repo_root)
    wait_until(out, lambda found: count(found, "trial") == 1, process)
    poison(out / "graph")  # before a trial opens it
    held.unlink()
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 3, said
    assert b"no trial of 2 succeeded. The first said: invalid: the loss is nan" in said
    assert events(out)[-1]["state"] == "failed"


def test_a_trial_that_does_not_fit_in_its_memory_is_refused_before_it_runs(tmp_path, repo_root):
    process = start(small_sweep(resources={"memory_gb": 0.01}), tmp_path / "sweep", repo_root)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 4, said
    assert b"raise resources.memory_gb" in said
    assert count(events(tmp_path / "sweep"), "trial") == 0


def test_when_the_time_is_over_trials_are_ended_the_best_is_kept_and_more_time_makes_it_go_on(tmp_path, repo_root):
    base = {"optimiser": {"epochs": 100_000, "lr": 0.01}}
    spec = small_sweep(base, scheduler={"kind": "none"}, trials=3, budget_minutes=0.4, report_every=20)
    assert run(spec, tmp_path / "sweep", repo_root) == 0
    _, trials, _ = read_sweep(tmp_path / "sweep")
    assert trials[0].state == "ended"
    best = parse_spec(json.loads((tmp_path / "sweep" / "best.json").read_text()))
    assert best.optimiser.epochs == trials[0].epoch > 0
    assert run(spec, tmp_path / "sweep", repo_root) == 0, "nothing is left to do"
    assert count(events(tmp_path / "sweep"), "resume") == 0
    longer = spec.model_copy(update={"budget_minutes": 0.8})
    assert run(longer, tmp_path / "sweep", repo_root) == 0
    _, later, _ = read_sweep(tmp_path / "sweep")
    assert later[0].epoch > trials[0].epoch
    assert later[0].reports[: len(trials[0].reports)] == trials[0].reports


def test_asked_to_end_while_ray_starts_a_sweep_is_cancelled_and_not_a_failure(tmp_path, repo_root):
    process = start(small_sweep(), tmp_path / "sweep", repo_root)
    deadline = time.monotonic() + SECONDS
    while not list(tmp_path.glob("sweep/.ray-*/job.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 6
    assert run(small_sweep(), tmp_path / "sweep", repo_root) == 0


def test_two_trials_at_a_time_survive_a_kill_each_done_exactly_once(tmp_path, repo_root):
    spec = small_sweep(trials=6, concurrency=2, seeds=2)
    out = tmp_path / "sweep"
    hold(out, 5, "begin")  # so that something is left to do
    process = start_held(spec, out, repo_root)
    found = wait_until(out, lambda found: count(found, "done") >= 2, process)
    os.kill(found[0]["pid"], signal.SIGKILL)
    assert finish(process) == 5
    assert run(spec, out, repo_root) == 0
    done = [event["number"] for event in events(out) if event["type"] == "done"]
    assert sorted(done) == list(range(6))
    for trial in read_sweep(out)[1].values():
        keys = [(report.run, report.epoch) for report in trial.reports]
        assert len(keys) == len(set(keys))
        assert len(trial.values) == (2 if trial.state == "finished" else 1)


@pytest.fixture
def cluster(repo_root) -> Iterator[str]:
    """The address of a Ray that someone else started, with a token."""
    code = (
        "import sys, ray; ray.init(address='local', num_cpus=2, include_dashboard=False, object_store_memory=10**8)\n"
        "print(ray.get_runtime_context().gcs_address, flush=True); sys.stdin.read()"
    )
    environment = dict(os.environ) | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "PYTHONPATH": str(repo_root),
    }  # fmt: skip
    with (
        TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short,  # pytest's paths are too long for sockets
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment | {"RAY_TMPDIR": short}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        assert process.poll() is None, "a sweep must not end a cluster that it did not start"
        process.stdin.close()


def test_the_same_spec_runs_on_a_cluster_and_gives_the_same(tmp_path, repo_root, cluster):
    spec = small_sweep(trials=3)
    assert run(spec, tmp_path / "local", repo_root) == 0
    settings = {"RAY_ADDRESS": cluster, "RAY_AUTH_TOKEN": TOKEN, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    assert run(spec, tmp_path / "cluster", repo_root, env=dict(os.environ) | settings) == 0
    assert outline(tmp_path / "cluster") == outline(tmp_path / "local")
    wrong = start(spec, tmp_path / "wrong", repo_root, env=dict(os.environ) | settings | {"RAY_AUTH_TOKEN": "x" * 32})
    _, said = wrong.communicate(timeout=SECONDS)
    assert wrong.returncode == 3
    assert b"refused the token" in said


def test_a_trial_that_asks_for_more_than_there_is_is_refused_with_both_numbers(tmp_path, repo_root):
    process = start(small_sweep(concurrency=None, resources={"cpus": 1000}), tmp_path / "sweep", repo_root)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 3
    assert b"asks for 1000 CPUs" in said
