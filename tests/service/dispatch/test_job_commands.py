"""The command of a job: fixed words, our own paths, and an environment with nothing in it that a job must not see."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from service.dispatch.job_commands import JobCommands
from service.settings import Settings
from tests.service.dispatch.test_retry_policy import JOB

SECRETS = {
    "NML_DATABASE_URL": "postgresql://u:hush@h/d", "PGPASSWORD": "hush", "AWS_SECRET_ACCESS_KEY": "hush",
    "LD_PRELOAD": "hush", "PYTHONSTARTUP": "hush", "NML_OUTCOME_FD": "hush", "NML_ENCODER_TOKEN": "hush",
    "MLFLOW_DATABASE_PASSWORD": "hush", "MLFLOW_AUTH_ADMIN_PASSWORD": "hush", "MLFLOW_BACKEND_STORE_URI": "hush",
    "MLFLOW_FLASK_SERVER_SECRET_KEY": "hush",
}  # fmt: skip
TRACKER = {"MLFLOW_TRACKING_USERNAME": "nml", "MLFLOW_TRACKING_PASSWORD": "known to jobs"}
ENVIRON = {"PATH": "/bin", "HOME": "/root", "NML_DATA": "/data", "RAY_ADDRESS": "auto", **TRACKER, **SECRETS}


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path, concurrency=1, memory_limit="4GB", database_url="postgresql://u:hush@h/d")


def test_training(settings):
    job = replace(JOB, id="abc", attempt=3, memory_bytes=10**9, spec={"run": {"threads": 2, "device": "cuda"}})
    launch = JobCommands(settings, ENVIRON).launch_spec(job)
    home = settings.home
    assert launch.argv == (
        "python", "-P", "-m", "trainer", f"{home}/jobs/abc/spec.json", "--out", f"{home}/runs/abc", "--resume",
        "--memory-limit", "4000000000",
    )  # fmt: skip
    assert (launch.memory_bytes, launch.cpus, launch.gpus, launch.marker) == (10**9, 2, 1, "abc.3")
    assert launch.environment["NML_ATTEMPT"] == "abc.3"
    assert launch.environment["OMP_NUM_THREADS"] == "2"


def test_a_first_attempt_knows_when_its_job_was_submitted(settings):
    job = replace(JOB, attempt=1, created=1_700_000_000.25)
    assert JobCommands(settings, ENVIRON).launch_spec(job).environment["NML_SUBMITTED"] == "1700000000.25"
    again = JobCommands(settings, ENVIRON).launch_spec(replace(job, attempt=2))
    assert "NML_SUBMITTED" not in again.environment  # it waited for a retry, too


def test_after_memory_ran_out_the_plan_shrinks(settings):
    assert JobCommands(settings, ENVIRON).launch_spec(replace(JOB, oom_retries=2)).argv[-2:] == ("--shrunk", "2")


def test_sweeps_and_imports(settings):
    sweep = JobCommands(settings, ENVIRON).launch_spec(replace(JOB, kind="sweep", id="s", memory_bytes=10**9))
    home = settings.home
    assert sweep.argv == ("python", "-P", "-m", "tuner", f"{home}/jobs/s/spec.json", "--out", f"{home}/runs/s")
    assert sweep.memory_bytes is None  # each process of its Ray would have the limit of them all
    imported = JobCommands(settings, ENVIRON).launch_spec(replace(JOB, kind="import", id="i", memory_bytes=10**9))
    assert imported.argv == ("python", "-P", "-m", "trainer.data.importing", f"{home}/jobs/i/spec.json")
    assert imported.memory_bytes == 10**9


@pytest.mark.parametrize("kind", ["publish", "index"])
def test_versions_and_their_indexes(settings, kind):
    launch = JobCommands(settings, ENVIRON).launch_spec(replace(JOB, kind=kind, id="v", memory_bytes=10**9))
    assert launch.argv == ("python", "-P", "-m", "service.embeddings", f"{settings.home}/jobs/v/spec.json")
    assert launch.environment["NML_HOME"] == str(settings.home)
    assert launch.environment["ARROW_DEFAULT_MEMORY_POOL"] == "system"


@pytest.mark.parametrize("runner", ["local", "ray"])
@pytest.mark.parametrize("kind", ["train", "sweep", "import", "publish", "index"])
def test_no_secret_of_the_service_reaches_a_job(settings, runner, kind):
    chosen = settings.model_copy(update={"runner": runner, "ray_jobs_url": "http://head:8265"})
    launch = JobCommands(chosen, ENVIRON).launch_spec(replace(JOB, kind=kind))
    assert "hush" not in json.dumps(dict(launch.environment))
    assert launch.environment.items() >= TRACKER.items()
    assert not launch.environment.keys() & SECRETS.keys()
    assert not any(name.startswith(launch.inherit) for name in SECRETS if launch.inherit)


def test_the_user_writes_nothing_but_the_spec(settings):
    text = "$(reboot) --out /etc; `id`"
    job = replace(JOB, id="abc", name=text, dataset=text, owner=text, spec={"run": {"name": text}})
    commands = JobCommands(settings, ENVIRON)
    launch = commands.launch_spec(job)
    commands.write_spec(job)
    assert text not in " ".join(launch.argv) + json.dumps(dict(launch.environment))
    assert json.loads((settings.home / "jobs" / "abc" / "spec.json").read_text()) == job.spec


def test_modules_are_found_where_we_are_from(settings):
    root = str(Path(__file__).resolve().parents[3])
    assert root in JobCommands(settings, ENVIRON).environment()["PYTHONPATH"].split(":")
    assert JobCommands(settings, ENVIRON).environment()["MLFLOW_TRACKING_URI"] == settings.tracking_uri


def test_on_a_cluster_what_belongs_to_the_machine_is_the_nodes_own(settings):
    chosen = settings.model_copy(update={"runner": "ray", "ray_jobs_url": "http://head:8265"})
    launch = JobCommands(chosen, ENVIRON).launch_spec(JOB)
    assert not launch.environment.keys() & {"PATH", "HOME", "RAY_ADDRESS", "PYTHONPATH"}
    assert {"PATH", "HOME", "RAY_", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"} <= set(launch.inherit)
    assert sys.executable not in launch.argv


def test_a_sweep_on_a_cluster_asks_no_memory_for_trials_that_run_elsewhere(settings):
    chosen = settings.model_copy(update={"runner": "ray", "ray_jobs_url": "http://head:8265"})
    for kind, memory in (("sweep", None), ("train", 10**9), ("index", 10**9)):
        assert (
            JobCommands(chosen, ENVIRON).launch_spec(replace(JOB, kind=kind, memory_bytes=10**9)).memory_bytes == memory
        )
