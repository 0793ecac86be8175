"""One run on k workers of Ray Train: start them, hand on what they report, stop them, and say why they failed.

Ray runs in a process of its own (trainer.parallel.launcher), so that its settings, signal handlers and output stay out
of the caller's; run_dir/.ray is the room in which the two meet. The workers write the run directory themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainer import errors
from trainer.config import TrainSpec
from trainer.errors import Cancelled, Infrastructure, TrainerError
from trainer.parallel.connection import python_path, ray_address, ray_environment, require_ray
from trainer.parallel.follow import Follower
from trainer.parallel.stop import clear_stop, request_stop
from trainer.run.atomic import write_json

POLL_SECONDS = 0.2
SHUTDOWN_SECONDS = 20.0  # for Ray to end its processes
LOG_TAIL = 2_000  # characters of Ray's output in an error message


def fit_parallel(
    spec: TrainSpec,
    run_dir: Path,
    *,
    on_event: Callable[[dict[str, Any]], bool] = lambda event: False,
    should_stop: Callable[[], bool] = lambda: False,
    max_failures: int = 3,
    cpus: int | None = None,
    start_seconds: float = 300.0,
    train: str = "trainer.loop:train_in_team",
) -> None:
    """Train `spec` with `spec.run.workers` workers and return when the run is complete.

    Args:
        run_dir: a run directory that the caller has claimed, on a file system that all workers share.
        on_event: gets each new line of events.jsonl; returning True ends the run early, as finished.
        should_stop: asked a few times a second; True cancels the run after its present epoch.
        max_failures: how often lost workers are started again, from the newest checkpoint.
        cpus: CPUs of a Ray started here; none: as many as the machine has. Ignored with RAY_ADDRESS.
        start_seconds: how long to wait for Ray to answer, and then, at each start, for room in a busy cluster.
        train: `module:function` that each worker calls with (spec, run_dir, team).

    Raises:
        TrainerError: the one that a worker raised, which is never retried; Cancelled after `should_stop`; InvalidInput
            if Ray is missing, refuses the token or has too few CPUs; Infrastructure if workers were lost too often.
    """
    require_ray(spec.run.workers)
    address = ray_address(os.environ)
    environment = ray_environment(os.environ, address) | python_path(os.environ)
    environment["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(start_seconds)
    with _meeting_place(run_dir.absolute()) as (room, temporary):
        job = {
            "spec": spec.model_dump(mode="json"), "run_dir": str(room.parent), "workers": spec.run.workers,
            "train": train, "max_failures": max_failures, "cpus": cpus, "address": address, "cwd": os.getcwd(),
            "start_seconds": start_seconds,
            "started": str(room / "started"),  # there while a group of workers trains
            "temporary": str(temporary),
        }  # fmt: skip
        write_json(room / "job.json", job)
        follower = Follower(room.parent / "events.jsonl")
        with _launched(room, environment) as launcher, closing(follower):
            _accompany(launcher, room, follower, on_event, should_stop)
            _raise_failure(room, launcher.returncode)


@contextmanager
def _meeting_place(run_dir: Path) -> Iterator[tuple[Path, Path]]:
    """The room for this run, and a folder with a path short enough for Ray's sockets; both are gone afterwards."""
    room = run_dir / ".ray"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir(parents=True)
    clear_stop(run_dir)
    short = os.environ.get("RAY_TMPDIR", "/tmp")
    os.makedirs(short, exist_ok=True)
    try:
        with TemporaryDirectory(prefix="nml-ray-", dir=short, ignore_cleanup_errors=True) as temporary:
            yield room, Path(temporary)
    finally:
        clear_stop(run_dir)
        shutil.rmtree(room, ignore_errors=True)


@contextmanager
def _launched(room: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher, which ends with the context, and ends by itself should this process be killed."""
    # -P: a file in the caller's folder must not pass for a module.
    # A session of its own: Ctrl-C reaches the caller alone, who decides what it means.
    command = [sys.executable, "-P", "-m", "trainer.parallel.launcher", str(room)]
    with (room / "ray.log").open("wb") as output:
        launcher = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield launcher
    finally:
        if launcher.poll() is None:
            launcher.terminate()
        try:
            launcher.communicate(timeout=SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.communicate()


def _accompany(
    launcher: subprocess.Popen[bytes], room: Path, follower: Follower,
    on_event: Callable[[dict[str, Any]], bool], should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Relay events and stop requests until the launcher has ended."""
    cancelling = False
    while True:
        ended = launcher.poll() is not None  # before reading: what was written by then is read
        answers = [on_event(event) for event in follower.new_events()]
        if ended:
            return
        if any(answers) and not cancelling:
            request_stop(room.parent, "finish")
        if not cancelling and should_stop():
            cancelling = True
            request_stop(room.parent, "cancel")
        if cancelling and not (room / "started").exists():
            raise Cancelled("stopped on request while no worker was training; `--resume` goes on from there")
        time.sleep(POLL_SECONDS)


def _raise_failure(room: Path, code: int | None) -> None:
    """Raise what the launcher reports; Ray's own output is kept as ray.log where it may explain a failure."""
    outcome = _outcome(room / "outcome.json")
    if outcome is None:
        tail = (room / "ray.log").read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]
        outcome = {
            "error": "Infrastructure",
            "message": f"Ray's process ended with code {code}. Its last words:\n{tail}",
        }
    if outcome["error"] is None:
        return
    kind: type[TrainerError] = getattr(errors, outcome["error"])
    message = outcome["message"]
    if kind is Infrastructure:
        kept = shutil.copy(room / "ray.log", room.parent / "ray.log")
        message += f"\nRay's output is in {kept}."
    raise kind(message)


def _outcome(file: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return document
