"""Ray in a process of its own: how it is started, how it ends with the process that needs it, and how it tells why.

Its settings, signal handlers and output stay out of the caller's. The two meet in a room, a folder of the run or sweep
directory: `job.json` says what to do, `outcome.json` what came of it, `ray.log` holds all output.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from trainer import errors
from trainer.errors import Infrastructure, TrainerError
from trainer.files.atomic import write_json
from trainer.process.parent_death import call_on_parent_death

SHUTDOWN_SECONDS = 20.0  # for Ray to end its processes
_ROOM = ".ray-"
LOG_TAIL = 2_000  # characters of Ray's output in an error message


@contextmanager
def meeting_place(directory: Path) -> Iterator[tuple[Path, Path]]:
    """A room in `directory`, and a folder with a path short enough for Ray's sockets; both are gone afterwards."""
    room = Path(mkdtemp(prefix=_ROOM, dir=directory))  # its own: another process may be at work here
    short = os.environ.get("RAY_TMPDIR", "/tmp")
    os.makedirs(short, exist_ok=True)
    try:
        with TemporaryDirectory(prefix="nml-ray-", dir=short, ignore_cleanup_errors=True) as temporary:
            yield room, Path(temporary)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def clear_rooms(directory: Path, *, keep: Path | None = None) -> None:
    """Remove rooms that killed processes left. Only for who holds the right to work in `directory`."""
    for room in directory.glob(f"{_ROOM}*"):
        if keep is None or room.name != keep.name:
            shutil.rmtree(room, ignore_errors=True)


@contextmanager
def launched(module: str, room: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m module room`, which ends with the context, and ends by itself should this process be killed."""
    # -P: a file in the caller's folder must not pass for a module.
    # A session of its own: Ctrl-C reaches the caller alone, who decides what it means.
    command = [sys.executable, "-P", "-m", module, str(room)]
    with (room / "ray.log").open("wb") as output:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
        try:
            child.communicate(timeout=SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()


def raise_failure(room: Path, code: int | None) -> None:
    """Raise what the child reports; Ray's own output is kept as ray.log where it may explain a failure."""
    outcome = _outcome(room / "outcome.json")
    if outcome is None:
        tail = _said(room)[-LOG_TAIL:]
        outcome = {
            "error": "Infrastructure",
            "message": f"Ray's process ended with code {code}. Its last words:\n{tail}",
        }
    if outcome["error"] is None:
        return
    kind: type[TrainerError] = getattr(errors, outcome["error"])
    message = outcome["message"]
    if kind is Infrastructure and (room / "ray.log").exists():
        kept = shutil.copy(room / "ray.log", room.parent / "ray.log")
        message += f"\nRay's output is in {kept}."
    raise kind(message)


def _said(room: Path) -> str:
    try:
        return (room / "ray.log").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "nothing"


def _outcome(file: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return document


def main(room: Path, work: Callable[[dict[str, Any], Path], None]) -> None:
    """The child's side: do the job, leave the outcome, end with the parent."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that Ray is shut down on the way out
    job = json.loads((room / "job.json").read_text(encoding="utf-8"))
    call_on_parent_death(lambda: _end(job["temporary"]))
    outcome: dict[str, str | None] = {"error": None}
    try:
        work(job, room)
    except TrainerError as error:
        kind = next(base for base in type(error).__mro__ if base.__module__ == TrainerError.__module__)
        outcome = {"error": kind.__name__, "message": str(error)}
    except Exception as error:
        traceback.print_exc()  # into ray.log
        outcome = {"error": "Infrastructure", "message": f"Ray failed: {type(error).__name__}: {error}"}
    write_json(room / "outcome.json", outcome)


def _end(temporary: str) -> None:
    """Nobody waits for us any more."""
    os.kill(os.getpid(), signal.SIGTERM)  # Ray's handler ends its processes
    time.sleep(10)  # a main thread that is deep in Ray does not hear signals
    shutil.rmtree(temporary, ignore_errors=True)
    os._exit(1)
