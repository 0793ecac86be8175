"""A whole service as a child process, in a home of its own, for as long as it is needed; afterwards nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from trainer.errors import Infrastructure

READY_SECONDS = 60.0
STOP_SECONDS = 40.0
# Seconds. Nothing here is worth a long goodbye; and should this process be killed, runs end themselves soon.
_IMPATIENT = {"NML_STOP_GRACE_SECONDS": "10", "NML_HEARTBEAT_TIMEOUT_SECONDS": "30"}
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEPT = {"NML_DATA"}  # of our own variables: where public data sets lie


@contextmanager
def running_service(home: Path, log: Path) -> Iterator[str]:
    """The address of a service that is ready. At the end it is stopped, with all that it started.

    Args:
        home: for all its files; no other process may use it.
        log: gets what the service writes.

    Raises:
        Infrastructure: it ended, or was not ready in time.
    """
    port = _free_port()
    command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port), "--home", str(home)]
    with log.open("wb") as output, _ending_by_exception():
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=_environment(home),
            start_new_session=True,  # Ctrl-C is for us; we then stop it in good order
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield url
        finally:
            for number in _ENDING:  # a second Ctrl-C would leave processes behind
                signal.signal(number, signal.SIG_IGN)
            _stop(process, home)


@contextmanager
def _ending_by_exception() -> Iterator[None]:
    """Whatever asks this process to end is a KeyboardInterrupt, so that it cleans up first."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(home: Path) -> dict[str, str]:
    """Embedded defaults: nothing that was set up for another service counts here."""
    kept = {
        name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(("NML_", "MLFLOW_"))
    }
    (home / "tmp").mkdir(parents=True)  # libraries leave caches in the temporary directory
    return {**kept, "NML_HOME": str(home), "TMPDIR": str(home / "tmp"), **_IMPATIENT}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    import httpx

    until, reason = time.monotonic() + READY_SECONDS, "no answer"
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False) as http:
        while time.monotonic() < until:
            if process.poll() is not None:
                raise Infrastructure(f"the service ended with code {process.returncode} before it was ready")
            try:
                answer = http.get("/readyz")
                if answer.is_success:
                    return
                reason = str(answer.json().get("detail"))
            except (httpx.TransportError, ValueError):
                pass
            time.sleep(0.1)
    raise Infrastructure(f"the service was not ready after {READY_SECONDS:g} s: {reason}")


def _stop(process: subprocess.Popen[bytes], home: Path) -> None:
    """SIGTERM, then patience; whatever still runs in this home after that is ended by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _end_leftovers(home)


def _end_leftovers(home: Path) -> None:
    """End processes that have `home` in their environment: what a service that had to be killed left behind."""
    import psutil

    def left() -> list[psutil.Process]:
        found = []
        for other in psutil.process_iter():
            try:
                if other.pid != os.getpid() and other.environ().get("NML_HOME") == str(home):
                    found.append(other)
            except psutil.Error:  # gone meanwhile, or another user's
                continue
        return found

    for ask in (psutil.Process.terminate, psutil.Process.kill):
        found = left()
        for other in found:
            with suppress(psutil.Error):
                ask(other)
        psutil.wait_procs(found, timeout=STOP_SECONDS)
