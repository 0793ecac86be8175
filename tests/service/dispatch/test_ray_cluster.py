"""The Ray runner on a real Ray: what runs there ends, stops, dies or waits; and a dispatcher that uses it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.dispatch.ray import RayRunner
from service.dispatch.ray_jobs import RayJobs
from service.dispatch.runner import PYTHON, Alive, Gone, LaunchSpec, Outcome, read_outcome, take_attempt, write_launch
from service.settings import Settings
from service.store import Store, open_store
from service.store.records import Event, NewJob
from tests.faults.histories import all_events, check_history, curve, small_spec, uninterrupted
from tests.faults.services import attempts, cmdline, is_gone, wait_for
from tests.service.dispatch.ray_cluster import Cluster, ray_cluster
from tests.tuner.sweeps import small_sweep
from trainer.config import parse_spec, spec_hash
from trainer.errors import Cancelled, Infrastructure

# Processes that wait for ever must not; so long, because a busy machine can take minutes to start Ray.
pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(1_200)]
ENDLESS = "import os, pathlib, time\npathlib.Path('{pid}').write_text(str(os.getpid()))\ntime.sleep(600)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster() as found:
        yield found


@pytest.fixture
def runner(cluster: Cluster) -> Iterator[RayRunner]:
    made = RayRunner(cluster.url, environ=dict(os.environ) | cluster.environment, look_seconds=0.2)
    yield made
    made.close()


@pytest.fixture
def launch_spec(tmp_path: Path) -> Callable[..., LaunchSpec]:
    """Makes the launch spec for some Python."""

    def make(code: str, **options: object) -> LaunchSpec:
        environment = {"PATH": os.environ["PATH"], "GREETING": "$HOME, sweet ${HOME}"}
        launch = LaunchSpec(tmp_path.name.replace("_", ""), 1, (PYTHON, "-c", code), environment, tmp_path, **options)  # type: ignore[arg-type]
        write_launch(launch)
        return launch

    return make


def await_end(runner: RayRunner, launch: LaunchSpec) -> Outcome | Gone:
    while isinstance(found := runner.poll(launch, None), Alive):
        time.sleep(0.1)
    return found


def await_text(file: Path) -> str:
    deadline = time.monotonic() + 120
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return file.read_text()


def test_a_job_runs_with_the_environment_of_its_launch_spec_and_leaves_its_outcome(runner, launch_spec):
    launch = launch_spec("import os; print(os.environ['GREETING'], os.environ.get('RAY_ADDRESS')); raise SystemExit(3)")
    assert runner.start(launch) == runner.start(launch) == runner.intent(launch)
    found = await_end(runner, launch)
    assert isinstance(found, Outcome)
    assert (found.exit_code, found.signal) == (3, None)
    assert launch.output_file.read_text() == "$HOME, sweet ${HOME} None\n"


def test_a_trainer_may_be_let_to_know_the_cluster_it_runs_on(runner, launch_spec, cluster):
    launch = launch_spec("import os; print(os.environ['RAY_ADDRESS'], os.environ['RAY_AUTH_TOKEN'])", inherit=("RAY_",))
    runner.start(launch)
    assert await_end(runner, launch) == Outcome(0)
    address, token = launch.output_file.read_text().split()
    assert address.startswith("127.0.0.1:")
    assert token == cluster.token


def test_a_gentle_stop_gives_the_time_for_a_checkpoint_and_a_single_signal(runner, launch_spec, tmp_path):
    code = (
        "import pathlib, signal, sys, time\n"
        "def write(*_):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "    time.sleep(6)\n"
        f"    pathlib.Path({str(tmp_path / 'checkpoint')!r}).write_text('whole')\n"
        "    sys.exit(6)\n"
        "signal.signal(signal.SIGTERM, write)\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).write_text('yes')\n"
        "time.sleep(600)\n"
    )
    launch = launch_spec(code)
    reference = runner.start(launch)
    await_text(tmp_path / "ready")
    for _ in range(3):
        runner.stop(launch, reference, force=False)
    found = await_end(runner, launch)
    assert isinstance(found, Outcome)
    assert found.exit_code == 6
    assert (tmp_path / "checkpoint").read_text() == "whole"


def test_force_ends_what_does_not_listen(cluster, launch_spec, tmp_path, monkeypatch):
    monkeypatch.setattr("service.dispatch.ray.KILL_SECONDS", 2)
    runner = RayRunner(cluster.url, environ=cluster.environment, look_seconds=0.2, settle_seconds=1)
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS.format(pid=tmp_path / "pid")
    launch = launch_spec(code)
    runner.start(launch)
    trainer = psutil.Process(int(await_text(tmp_path / "pid")))
    runner.stop(launch, None, force=False)
    time.sleep(2)
    assert runner.poll(launch, None) == Alive()
    runner.stop(launch, None, force=True)
    await_end(runner, launch)
    assert is_gone(trainer)


def test_a_killed_shim_takes_the_trainer_along_and_ray_tells(runner, launch_spec, tmp_path):
    launch = launch_spec(ENDLESS.format(pid=tmp_path / "pid"))
    runner.start(launch)
    trainer = psutil.Process(int(await_text(tmp_path / "pid")))
    shim = trainer.parent()
    assert shim is not None
    assert "service.dispatch.shim" in shim.cmdline()
    os.kill(shim.pid, signal.SIGKILL)
    found = await_end(runner, launch)
    assert isinstance(found, Gone)
    assert "exit code -9" in found.message
    assert is_gone(trainer)


def test_a_job_without_room_waits_and_can_be_withdrawn(runner, launch_spec, tmp_path):
    launch = launch_spec(f"open({str(tmp_path / 'ran')!r}, 'w')", cpus=64)
    runner.start(launch)
    time.sleep(3)
    assert runner.poll(launch, None) == Alive()
    runner.stop(launch, None, force=False)
    assert isinstance(await_end(runner, launch), Gone)
    assert take_attempt(launch) is None
    assert not (tmp_path / "ran").exists()


def test_another_runner_finds_what_one_has_started(cluster, runner, launch_spec, tmp_path):
    launch = launch_spec(
        f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.1)"
    )
    runner.start(launch)
    runner.close()
    other = RayRunner(cluster.url, environ=cluster.environment, look_seconds=0.2)
    assert other.poll(launch, None) == Alive()
    (tmp_path / "go").touch()
    assert await_end(other, launch) == Outcome(0)


def test_a_wrong_token_is_refused_by_name(cluster, launch_spec):
    launch = launch_spec("pass")
    runner = RayRunner(cluster.url, environ={"RAY_AUTH_TOKEN": "x" * 32})
    with pytest.raises(Infrastructure, match="refused the token") as caught:
        runner.start(launch)
    assert isinstance(caught.value, OSError)
    assert not launch.outcome_file.exists()


# A dispatcher that uses it, as a process that can be killed.


@pytest.fixture
def settings(cluster: Cluster, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home", runner="ray", ray_jobs_url=cluster.url, concurrency=1, memory_limit="8GB",
        lease_seconds=5.0, poll_seconds=0.1, infra_retries=0, stop_grace_seconds=60.0,
    )  # fmt: skip


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    opened = open_store(settings)
    yield opened
    opened.close()


@contextlib.contextmanager
def dispatching(settings: Settings, cluster: Cluster, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m service.dispatch`; its log is shown if a test fails."""
    environment = os.environ | settings.environment() | cluster.environment | {"OMP_NUM_THREADS": "1"} | variables
    process = subprocess.Popen([sys.executable, "-m", "service.dispatch"], env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def submit(store: Store, document: dict[str, Any]) -> str:
    spec = parse_spec(document)
    new = NewJob("train", document, spec_hash(spec), spec.data.name, memory_bytes=10**9)
    return store.jobs.submit(new)[0].id


def told(store: Store, job_id: str, kind: str) -> list[Event]:
    return [event for event in all_events(store, job_id) if event.type == kind]


def await_job(store: Store, job_id: str, state: str) -> None:
    def is_over() -> bool:
        job = store.jobs.get(job_id)
        return job is not None and job.is_terminal

    wait_for(is_over, 400, lambda: str(store.jobs.get(job_id)))
    job = store.jobs.get(job_id)
    assert job is not None
    assert (job.state, job.attempt) == (state, 1), job.failure_message


def test_a_killed_dispatcher_loses_nothing_and_the_next_one_goes_on_with_the_same_process(
    cluster, settings, store, tmp_path
):
    document = small_spec(epochs=200)
    job_id = submit(store, document)
    with dispatching(settings, cluster) as dispatcher:
        wait_for(lambda: len(told(store, job_id, "epoch")) >= 5, 400)
        dispatcher.kill()
    (trainer,) = attempts(settings.home)
    known = len(all_events(store, job_id))
    with dispatching(settings, cluster):
        wait_for(lambda: len(all_events(store, job_id)) > known, 200)
        assert trainer in attempts(settings.home) or len(told(store, job_id, "epoch")) == 200
        await_job(store, job_id, "succeeded")
    events = all_events(store, job_id)
    check_history(events, "succeeded")
    assert len(told(store, job_id, "start")) == 1
    assert not told(store, job_id, "resume")
    assert curve(events) == uninterrupted(document, tmp_path / "reference")
    assert not attempts(settings.home)


def test_a_cancelled_job_writes_its_checkpoint_and_leaves_no_process(cluster, settings, store):
    job_id = submit(store, small_spec(epochs=100_000, run={"checkpoint_every": 50_000}))
    with dispatching(settings, cluster):
        wait_for(lambda: len(told(store, job_id, "epoch")) >= 5, 400)
        store.jobs.cancel(job_id)
        await_job(store, job_id, "cancelled")
    launch = LaunchSpec(job_id, 1, (), {}, settings.job_directory(job_id))
    outcome = read_outcome(launch)
    assert outcome is not None
    assert outcome.exit_code == Cancelled.exit_code
    assert list((settings.run_directory(job_id) / "checkpoints").iterdir())
    check_history(all_events(store, job_id), "cancelled")
    assert not attempts(settings.home)


def test_a_head_that_hangs_for_a_while_costs_no_attempt(cluster, settings, store):
    running = submit(store, small_spec(epochs=200))
    second = submit(store, small_spec(epochs=5))
    with dispatching(settings.model_copy(update={"concurrency": 3}), cluster):
        wait_for(lambda: len(told(store, running, "epoch")) >= 5, 400)
        with suspended(cluster):
            third = submit(store, small_spec(epochs=5))
            time.sleep(4 * settings.lease_seconds)
        for job_id in (running, second, third):
            await_job(store, job_id, "succeeded")
            check_history(all_events(store, job_id), "succeeded")


def test_a_sweep_has_its_trials_run_by_the_cluster_that_runs_it(cluster, settings, store):
    spec = small_sweep(trials=2)
    document = spec.model_dump(mode="json")
    job_id = store.jobs.submit(NewJob("sweep", document, "0" * 64, spec.base.data.name))[0].id
    with dispatching(settings, cluster):
        await_job(store, job_id, "succeeded")
    check_history(all_events(store, job_id), "succeeded")
    known = RayJobs(cluster.url, cluster.environment).status(f"{job_id}-1")
    assert known is not None
    assert known["driver_info"] is not None, "a Ray of its own was started"


@contextlib.contextmanager
def suspended(cluster: Cluster) -> Iterator[None]:
    """The dashboard takes connections and answers none."""
    dashboard = [
        process for process in cluster.processes if any("dashboard/dashboard.py" in word for word in cmdline(process))
    ]  # fmt: skip
    assert dashboard
    for process in dashboard:
        process.suspend()
    try:
        yield
    finally:
        for process in dashboard:
            process.resume()


def test_a_job_whose_cluster_refuses_the_token_says_so_and_waits_for_a_better_one(cluster, settings, store):
    job_id = submit(store, small_spec(epochs=5))

    def reasons() -> list[str]:
        return [str(event.data.get("reason")) for event in told(store, job_id, "state")]

    with dispatching(settings, cluster, RAY_AUTH_TOKEN="x" * 32):
        wait_for(lambda: any("refused the token" in reason for reason in reasons()), 60)
    with dispatching(settings, cluster):
        wait_for(lambda: store.jobs.get(job_id).is_terminal, 300, lambda: str(store.jobs.get(job_id)))
    job = store.jobs.get(job_id)
    assert (job.state, job.infra_retries) == ("succeeded", 0)  # the operator's mistake costs the job nothing
