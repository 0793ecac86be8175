"""A host cut off, one without power, a new Ray head, database and tracker gone: jobs end well, once, and whole."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from service.client import Client, Job
from tests.cluster.runtime.cluster import HEALTHY_SECONDS, Cluster, wait_for
from tests.cluster.work import (
    PATIENCE,
    WORKERS,
    check_one_history,
    history,
    hosts_of_trials,
    journal,
    mlflow_runs,
    ray_nodes,
    sweep_spec,
    train_spec,
    wait_for_epoch,
    worker_of,
)
from tests.faults.histories import check_history, uninterrupted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_800)]
EPOCHS = 500  # of a job that is struck; it has a checkpoint every five
TRIALS = 8


def say(text: str) -> None:
    sys.stderr.write(f"\n{time.strftime('%H:%M:%S')} {text}")


def is_alive(cluster: Cluster, name: str) -> bool:
    try:
        return ray_nodes(cluster).get(cluster[name].host.address) == "ALIVE"
    except Exception:  # the head itself may be away
        return False


@pytest.fixture(autouse=True)
def _two_workers(cluster: Cluster) -> None:
    """Each test begins with everything up."""
    for name in cluster.containers:
        cluster.fabric.mend(name)
    cluster.up()
    wait_for(lambda: all(is_alive(cluster, name) for name in WORKERS), HEALTHY_SECONDS, "two workers")


def check_sweep(cluster: Cluster, client: Client, sweep: Job) -> None:
    """Every trial once, trained to its end, and told once; one history; one MLflow run each."""
    ended = client.sweep(sweep.id)
    assert ended.state == "succeeded", (ended.failure_message, client.log(sweep.id)[-2_000:])
    check_history(history(client, sweep), "succeeded")  # type: ignore[arg-type]
    trials = client.trials(sweep.id)
    assert [trial["number"] for trial in trials] == list(range(TRIALS))
    assert {trial["state"] for trial in trials} == {"finished"}
    done = [event["number"] for event in journal(cluster, sweep) if event["type"] == "done"]
    assert sorted(done) == list(range(TRIALS))
    experiment = sweep.document["spec"]["base"]["run"]["experiment"]
    runs = mlflow_runs(cluster, experiment)
    children = [run for run in runs if any(tag["key"] == "mlflow.parentRunId" for tag in run["data"]["tags"])]
    assert (len(children), len(runs) - len(children)) == (TRIALS, 1)
    assert {run["info"]["status"] for run in runs} == {"FINISHED"}


def check_job(cluster: Cluster, client: Client, job: Job, experiment: str, folder: Path, *, seed: int) -> None:
    """One history and one MLflow run, and the curve of a run that nothing happened to."""
    ended = client.job(job.id)
    assert ended.state == "succeeded", (ended.failure_message, client.log(job.id)[-2_000:])
    say(f"{experiment}: succeeded in attempt {ended.attempt}")
    curve = check_one_history(client, job, epochs=EPOCHS)
    assert curve == uninterrupted(train_spec(experiment, epochs=EPOCHS, seed=seed), folder)
    (run,) = mlflow_runs(cluster, experiment)
    assert run["info"]["status"] == "FINISHED"
    assert client.vectors.wait(job, PATIENCE).state == "ready"


def test_a_worker_cut_off_in_the_middle_of_a_sweep(cluster: Cluster, client: Client) -> None:
    sweep = client.submit_sweep(sweep_spec("cut", trials=TRIALS, epochs=200))
    driver = wait_for(lambda: worker_of(cluster, sweep), PATIENCE, "the sweep to start").host.name
    (other,) = set(WORKERS) - {driver}
    wait_for(lambda: other in [hosts[-1] for hosts in hosts_of_trials(cluster, sweep).values()], PATIENCE, "a trial")
    cluster.fabric.cut(other)
    say(f"{other} is cut off; the sweep is driven from {driver}")
    wait_for(lambda: not is_alive(cluster, other), PATIENCE, "Ray to miss it")
    say("Ray counts it as dead")
    wait_for(lambda: client.sweep(sweep.id).is_terminal, PATIENCE, "the sweep")
    say(f"{client.sweep(sweep.id).state}: {hosts_of_trials(cluster, sweep)}")
    cluster.fabric.mend(other)
    wait_for(lambda: is_alive(cluster, other), PATIENCE, "it to join again")
    say(f"{other} has joined again")
    check_sweep(cluster, client, sweep)


def test_a_worker_without_power_in_the_middle_of_a_job(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    job = client.submit(train_spec("power", epochs=EPOCHS, seed=1))
    wait_for_epoch(client, job, 20)
    worker = worker_of(cluster, job)
    assert worker is not None
    worker.kill()
    say(f"{worker.host.name} is without power, at epoch {client.job(job.id).progress['epoch']}")
    wait_for(lambda: client.job(job.id).is_terminal, PATIENCE, "the job")
    check_job(cluster, client, job, "power", tmp_path, seed=1)
    assert client.job(job.id).attempt >= 2


def test_a_new_ray_head_in_the_middle_of_a_job_and_a_sweep(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    sweep = client.submit_sweep(sweep_spec("head-sweep", trials=TRIALS, epochs=200))
    job = client.submit(train_spec("head", epochs=EPOCHS, seed=2))
    wait_for(lambda: hosts_of_trials(cluster, sweep), PATIENCE, "a trial")
    wait_for_epoch(client, job, 20)
    cluster["ray-head"].crash()
    say("Ray's head is killed")
    wait_for(lambda: client.job(job.id).is_terminal and client.sweep(sweep.id).is_terminal, PATIENCE, "both")
    check_job(cluster, client, job, "head", tmp_path, seed=2)
    say(f"sweep: attempt {client.sweep(sweep.id).attempt}")
    check_sweep(cluster, client, sweep)


def test_postgresql_and_mlflow_away_in_the_middle_of_a_job(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    job = client.submit(train_spec("outage", epochs=EPOCHS, seed=3))
    wait_for_epoch(client, job, 20)
    cluster["mlflow"].crash()
    cluster["postgres"].kill()
    cluster.start("postgres")
    say("PostgreSQL lost its power and has it again; MLflow was killed")
    wait_for(lambda: client.job(job.id).is_terminal, PATIENCE, "the job")
    check_job(cluster, client, job, "outage", tmp_path, seed=3)
