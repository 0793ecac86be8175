"""A home, a store and dispatchers for tests, with the stand-in trainer and nothing that waits for long."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.dispatch.dispatcher import Dispatcher
from service.dispatch.job_commands import JobCommands
from service.dispatch.local import LocalRunner
from service.dispatch.procfs import PROC
from service.settings import Settings
from service.store import Store, open_store
from service.store.records import TERMINAL, Event, Job, NewJob
from tests.service.dispatch import standin_trainer

STANDIN = (sys.executable, "-S", str(Path(standin_trainer.__file__)))
DISPATCHER = Path(standin_trainer.__file__).with_name("dispatcher_process.py")
ROOT = Path(__file__).resolve().parents[3]
QUICK: dict[str, Any] = {
    "lease_seconds": 3.0, "poll_seconds": 0.05, "retry_seconds": 0.05, "retry_seconds_max": 0.5,
    "stop_grace_seconds": 60.0, "concurrency": 4, "memory_limit": "8GB", "min_free_bytes": 0,
}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Quick ones in a home of its own; whatever still runs there afterwards is ended."""
    made = Settings(home=tmp_path / "home", **QUICK)
    yield made
    for process in processes_of(made.home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """A file that is not there yet: `until` of the stand-in, which a test touches to let a run go on."""
    return tmp_path / "go"


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    made = open_store(settings)
    yield made
    made.close()


@pytest.fixture
def commands(settings: Settings) -> JobCommands:
    return JobCommands(settings, train=STANDIN)


@pytest.fixture
def dispatching(settings: Settings, store: Store, commands: JobCommands) -> Iterator[Callable[..., Dispatcher]]:
    """Starts dispatchers in threads; all are stopped at the end."""
    stops: list[tuple[threading.Event, threading.Thread]] = []

    def start(**changes: Any) -> Dispatcher:
        runner = changes.pop("runner", None) or LocalRunner()
        given = {"commands": commands, **changes}
        made = Dispatcher(given.pop("settings", settings), store, runner, **given)
        stop = threading.Event()
        thread = threading.Thread(target=made.run, args=[stop], daemon=True)
        thread.start()
        stops.append((stop, thread))
        return made

    yield start
    for stop, _ in stops:
        stop.set()
    for _, thread in stops:
        thread.join(120)
        assert not thread.is_alive()


@pytest.fixture
def process(settings: Settings) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts dispatchers as processes of their own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*fault: str, lease: float = 1.0) -> subprocess.Popen[bytes]:
        quick = settings.model_copy(update={"lease_seconds": lease})
        environment = os.environ | quick.environment() | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(DISPATCHER), *fault]
        started.append(subprocess.Popen(command, env=environment))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this user may not mount a small file system ({error})")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def submit(
    store: Store, *, epochs: int = 10, seed: int = 0, job: dict[str, Any] | None = None, until: Path | None = None,
    **standin: Any,
) -> Job:  # fmt: skip
    """Queue a run of the stand-in; `job` holds fields of NewJob."""
    held = {} if until is None else {"until": str(until)}
    spec = {"optimiser": {"epochs": epochs}, "run": {"seed": seed}, "standin": standin | held}
    new = NewJob(**{"kind": "train", "spec": spec, "spec_hash": "x", "dataset": "digits", **(job or {})})
    return store.jobs.submit(new)[0]


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Look until the condition holds, and return what it gave. The seconds guard against hanging, nothing else."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def ended(store: Store, job_id: str, seconds: float = 120.0) -> Job:
    """The job once it has ended."""
    return until(lambda: (job := store.jobs.get(job_id)) is not None and job.state in TERMINAL and job, seconds)


def running(store: Store, job_id: str, epochs: int = 1, seconds: float = 120.0) -> Job:
    """The job once it has told so many epochs."""
    return until(
        lambda: (job := store.jobs.get(job_id)) and (job.progress.get("epoch") or 0) >= epochs and job, seconds
    )


def events_of(store: Store, job_id: str) -> list[Event]:
    """All events of a job; their numbers have no gaps."""
    found: list[Event] = []
    while part := store.events.after(job_id, found[-1].seq if found else 0):
        found += part
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    return found


def curve(store: Store, job_id: str) -> list[float]:
    """The losses as told, in order, with rewinds applied; each epoch stands once."""
    found: dict[int, float] = {}
    for event in store.events.series(job_id):
        if event.type == "rewind":
            found = {epoch: loss for epoch, loss in found.items() if epoch <= event.data["epoch"]}
        else:
            assert event.epoch is not None
            assert event.epoch not in found
            found[event.epoch] = event.data["metrics"]["loss"]
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[epoch] for epoch in sorted(found)]


def processes_of(home: Path) -> list[int]:
    """Processes of jobs in a home, by their environment."""
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes().split(b"\0")
                if f"NML_HOME={home}".encode() in environment and any(
                    v.startswith(b"NML_ATTEMPT=") for v in environment
                ):
                    found.append(int(folder.name))
    return found
