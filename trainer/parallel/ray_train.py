"""One run on k workers of Ray Train: start them, hand on what they report, stop them, and say why they failed.

Ray runs in a process of its own (trainer.parallel.launcher), so that its settings, signal handlers and output stay out
of the caller's; they meet in a room of the run directory. The workers write the run directory themselves.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.config import TrainSpec
from trainer.errors import Cancelled
from trainer.files.atomic import write_json
from trainer.files.journal import JournalReader, end_offset
from trainer.parallel.child import clear_rooms, launched, meeting_place, raise_failure
from trainer.parallel.connection import python_path, ray_address, ray_environment, require_ray
from trainer.run.stop_file import clear_stop, request_stop

POLL_SECONDS = 0.2


def fit_parallel(
    spec: TrainSpec,
    run_dir: Path,
    *,
    train: str,
    on_event: Callable[[dict[str, Any]], bool] = lambda event: False,
    should_stop: Callable[[], bool] = lambda: False,
    max_failures: int = 3,
    cpus: int | None = None,
    start_seconds: float = 300.0,
) -> None:
    """Train `spec` with `spec.run.workers` workers and return when the run is complete.

    Args:
        run_dir: a run directory that the caller has claimed, on a file system that all workers share.
        train: `module:function` that each worker calls with (spec, run_dir, team).
        on_event: gets each new event of the journal; returning True ends the run early, as finished.
        should_stop: asked a few times a second; True cancels the run after its present epoch.
        max_failures: how often lost workers are started again, from the newest checkpoint.
        cpus: CPUs of a Ray started here; none: as many as the machine has. Ignored with RAY_ADDRESS.
        start_seconds: how long to wait for Ray to answer, and then, at each start, for room in a busy cluster.

    Raises:
        TrainerError: the one that a worker raised, which is never retried; Cancelled after `should_stop`; InvalidInput
            if Ray is missing, refuses the token or has too few CPUs; Infrastructure if workers were lost too often.
    """
    require_ray(f"run.workers={spec.run.workers}")
    address = ray_address(os.environ)
    environment = ray_environment(os.environ, address) | python_path(os.environ)
    environment["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(start_seconds)
    try:
        clear_stop(run_dir)
        clear_rooms(run_dir)
        with meeting_place(run_dir.absolute()) as (room, temporary):
            job = {
                "spec": spec.model_dump(mode="json"), "run_dir": str(room.parent), "workers": spec.run.workers,
                "train": train, "max_failures": max_failures, "cpus": cpus, "address": address, "cwd": os.getcwd(),
                "start_seconds": start_seconds,
                "started": str(room / "started"),  # there while a group of workers trains
                "temporary": str(temporary),
            }  # fmt: skip
            write_json(room / "job.json", job)
            journal = room.parent / "events.jsonl"
            reader = JournalReader(journal, end_offset(journal))
            with launched("trainer.parallel.launcher", room, environment) as launcher:
                _accompany(launcher, room, reader, on_event, should_stop)
                raise_failure(room, launcher.returncode)
    finally:
        clear_stop(run_dir)


def _accompany(
    launcher: subprocess.Popen[bytes], room: Path, reader: JournalReader,
    on_event: Callable[[dict[str, Any]], bool], should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Relay events and stop requests until the launcher has ended."""
    cancelling = False
    while True:
        ended = launcher.poll() is not None  # before reading: what was written by then is read
        answers = [on_event(event) for event in reader.new_events()]
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
