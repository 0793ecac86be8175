"""Runs on a real Ray on this machine: two workers that report, stop, die and fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from trainer.config import TrainSpec, parse_spec
from trainer.errors import Cancelled, Infrastructure, InvalidInput, NonFinite
from trainer.parallel.ray_train import fit_parallel
from trainer.run.stop_file import request_stop

HERE = Path(__file__).parent
TOKEN = "the-token-of-a-cluster-known-to-its-users"
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray then takes 127.0.0.1 for an address like any other
# Processes that wait for ever must not; 600 s, because a busy machine can take minutes to start Ray.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def spec(epochs: int, workers: int = 2) -> TrainSpec:
    return parse_spec({"optimiser": {"epochs": epochs}, "run": {"workers": workers}})


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_events_are_relayed_and_a_callback_ends_the_run_early(tmp_path):
    events: list[dict[str, Any]] = []

    def on_event(event: dict[str, Any]) -> bool:
        events.append(event)
        return event["epoch"] == 3

    fit_parallel(spec(epochs=10_000), tmp_path, on_event=on_event, cpus=4, train="standins:train")
    assert events == [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["epoch"] for event in events] == list(range(len(events)))
    assert 3 <= events[-1]["epoch"] < 10_000
    assert {event["sum"] for event in events[1:]} == {1 + 2}  # both workers took part
    assert {event["threads"] for event in events[1:]} == {4 // 2}
    assert {event["cwd"] for event in events[1:]} == {os.getcwd()}
    assert (tmp_path / "metrics.json").exists()
    left = {entry.name for entry in tmp_path.iterdir()}
    assert not left & {".ray", ".stop", "ray.log"}
    assert gone(events[0]["pid"])


def test_stop_request_cancels_after_the_epoch_and_an_old_one_is_forgotten(tmp_path):
    request_stop(tmp_path, "cancel")  # left by a run that was killed
    seen: list[int] = []

    def on_event(event: dict[str, Any]) -> bool:
        seen.append(event["epoch"])
        return False

    with pytest.raises(Cancelled, match=r"stopped on request after epoch \d+$"):
        fit_parallel(
            spec(epochs=10_000), tmp_path, on_event=on_event, should_stop=lambda: 3 in seen, cpus=2,
            train="standins:train",
        )  # fmt: skip
    assert 3 <= seen[-1] < 10_000
    assert int((tmp_path / "checkpoint").read_text()) == seen[-1]
    assert not (tmp_path / ".stop").exists()


def test_killed_worker_is_started_again_and_the_run_finishes(tmp_path):
    events: list[dict[str, Any]] = []
    fit_parallel(
        spec(epochs=5), tmp_path, on_event=lambda event: events.append(event) or False, max_failures=1, cpus=2,
        train="standins:killed_once",
    )  # fmt: skip
    assert (tmp_path / "was-killed").exists()
    assert [(event["type"], event["epoch"]) for event in events] == [
        ("start", 0), ("epoch", 1), ("epoch", 2), ("resume", 2), ("epoch", 3), ("epoch", 4), ("epoch", 5),
    ]  # fmt: skip
    assert (tmp_path / "metrics.json").exists()


def test_workers_killed_too_often_are_an_infrastructure_failure(tmp_path):
    with pytest.raises(Infrastructure, match=r"worker 1: (said nothing; )?its process or node is gone") as caught:
        fit_parallel(spec(epochs=5), tmp_path, max_failures=0, cpus=2, train="standins:killed_always")
    assert sorted((tmp_path / "attempts").read_text().split()) == ["0", "1"]
    assert str(tmp_path / "ray.log") in str(caught.value)
    assert (tmp_path / "ray.log").read_text()


def test_error_of_one_worker_comes_out_as_it_is_and_is_not_retried(tmp_path):
    with pytest.raises(NonFinite) as caught:
        fit_parallel(spec(epochs=5), tmp_path, max_failures=3, cpus=2, train="standins:diverging")
    assert str(caught.value) == "the loss of epoch 1 is nan. Lower optimiser.lr."
    assert sorted((tmp_path / "attempts").read_text().split()) == ["0", "1"]


def test_more_workers_than_cpus_are_refused_at_once(tmp_path):
    with pytest.raises(InvalidInput, match=r"run\.workers is 64, and this machine has 2 CPUs"):
        fit_parallel(spec(epochs=5, workers=64), tmp_path, cpus=2, train="standins:train")
    assert list(tmp_path.iterdir()) == []


def test_stop_before_workers_have_started_does_not_wait_for_them(tmp_path):
    with pytest.raises(Cancelled, match="no worker was training"):
        fit_parallel(spec(epochs=5), tmp_path, should_stop=lambda: True, cpus=2, train="standins:train")
    assert list(tmp_path.iterdir()) == []


def test_workers_end_when_their_caller_is_killed(tmp_path, repo_root):
    code = (
        "import sys; from pathlib import Path; from trainer.config import parse_spec;"
        "from trainer.parallel.ray_train import fit_parallel;"
        "spec = parse_spec({'optimiser': {'epochs': 100000}, 'run': {'workers': 2}});"
        "fit_parallel(spec, Path(sys.argv[1]), cpus=2, train='standins:train')"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=repo_root)
    try:
        events = tmp_path / "events.jsonl"
        while not (events.exists() and events.read_text().count("\n") > 2):
            assert caller.poll() is None
            time.sleep(0.2)
        workers = psutil.Process(caller.pid).children(recursive=True)
    finally:
        caller.kill()
        caller.wait()
    assert json.loads(events.read_text().splitlines()[0])["pid"] in {worker.pid for worker in workers}
    _, alive = psutil.wait_procs(workers, timeout=180)
    assert not [process for process in alive if not gone(process.pid)]


@pytest.fixture(scope="module")
def cluster(repo_root) -> Iterator[str]:
    """The address of a Ray that someone else started, with a token."""
    code = (
        "import sys, ray; ray.init(address='local', num_cpus=2, include_dashboard=False, object_store_memory=10**8)\n"
        "print(ray.get_runtime_context().gcs_address, flush=True); sys.stdin.read()"
    )
    environment = dict(os.environ) | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0",
        **LOOPBACK, "PYTHONPATH": f"{repo_root}{os.pathsep}{HERE}",
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
        assert process.poll() is None, "a run must not end a cluster that it did not start"
        process.stdin.close()


@pytest.fixture
def call_cluster(monkeypatch) -> Callable[[str, str], None]:
    """Set the environment of someone who uses a cluster."""

    def call(address: str, token: str) -> None:
        for name, value in {"RAY_ADDRESS": address, "RAY_AUTH_TOKEN": token, **LOOPBACK}.items():
            monkeypatch.setenv(name, value)

    return call


def test_a_run_uses_the_cluster_it_is_told_to(cluster, call_cluster, tmp_path):
    call_cluster(cluster, TOKEN)
    fit_parallel(spec(epochs=2), tmp_path, train="standins:train")
    assert (tmp_path / "metrics.json").exists()


def test_a_wrong_token_is_reported_as_such(cluster, call_cluster, tmp_path):
    call_cluster(cluster, "another-token")
    with pytest.raises(InvalidInput, match=f"{cluster} refused the token"):
        fit_parallel(spec(epochs=2), tmp_path, train="standins:train")


def test_a_cluster_that_does_not_answer_is_not_waited_for_ever(call_cluster, tmp_path):
    call_cluster("127.0.0.1:1", TOKEN)
    with pytest.raises(Infrastructure, match=r"127\.0\.0\.1:1 does not answer within 8 s"):
        fit_parallel(spec(epochs=2), tmp_path, start_seconds=8, train="standins:train")
