"""The whole service as real processes, to be killed: `nml serve` in a home of its own, and all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from service.client import Client
from service.settings import Settings
from tests.trainer.tracking.mlflow_server import free_port

SHIM = "service.dispatch.shim"
ROOT = Path(__file__).resolve().parents[2]
QUICK: dict[str, Any] = {  # nothing waits longer than a test must
    "lease_seconds": 3.0, "poll_seconds": 0.1, "retry_seconds": 0.2, "retry_seconds_max": 1.0,
    "stop_grace_seconds": 20.0, "rate_per_second": 10_000.0, "rate_burst": 10_000, "min_free_bytes": 0,
}  # fmt: skip


class Service:
    """One `nml serve`; what it started can be found and killed by what it is."""

    def __init__(self, home: Path, *, role: str = "all", **settings: Any) -> None:
        self.settings = Settings(home=home, **{"port": free_port(), **QUICK, **settings})
        self.role = role
        self.url = f"http://127.0.0.1:{self.settings.port}"
        self.log = home / f"serve-{role}-{self.settings.port}.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.settings.home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "service.cli", "serve", "--role", self.role], cwd=ROOT, stdout=log, stderr=log,
                env={"OMP_NUM_THREADS": "1"} | os.environ | self.settings.environment(), start_new_session=True,
            )  # fmt: skip

    def wait_until_ready(self, seconds: float = 120.0) -> None:
        wait_for(lambda: self.answers("/readyz"), seconds, self.last_words)

    def answers(self, path: str) -> bool:
        try:
            return httpx.get(self.url + path, timeout=30).status_code == 200
        except httpx.HTTPError:
            return False

    def client(self, **options: Any) -> Client:
        return Client(self.url, **{"patience": 120.0, **options})

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:] if self.log.exists() else ""

    def parts(self, module: str) -> list[psutil.Process]:
        """Processes of the service that run a module, such as service.dispatch; its own, not those of others."""
        found = []
        for process in self._children():
            try:
                if module in process.cmdline():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def trainers(self) -> list[psutil.Process]:
        """Processes that train in this home, whoever is their parent now; the shims not among them."""
        return [process for process in attempts(self.settings.home) if "service.dispatch.shim" not in cmdline(process)]

    def shims(self) -> list[psutil.Process]:
        return [process for process in attempts(self.settings.home) if SHIM in cmdline(process)]

    def kill(self) -> None:
        """kill -9 of `nml serve` itself; the kernel ends API and dispatcher with it, trainers go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not self.parts("service.dispatch") and not self.answers("/livez"), 120)

    def stop(self, seconds: float = 120.0) -> int:
        """The gentle way; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                for process in self._children():
                    kill(process)
                self.process.kill()
                self.process.wait()
        for process in attempts(self.settings.home):
            kill(process)

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True) if self.process else []
        except psutil.Error:
            return []


def attempts(home: Path) -> list[psutil.Process]:
    """Shims and trainers of the jobs in `home`, known by the environment they were given."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if "NML_ATTEMPT" in environment and environment.get("NML_HOME") == str(home) and not is_gone(process):
            found.append(process)
    return found


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> bool:
    """kill -9; whether there was something to kill."""
    try:
        if is_gone(process):
            return False
        process.kill()
    except psutil.Error:
        return False
    return True


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def wait_for(condition: Callable[[], Any], seconds: float, explain: Callable[[], str] = lambda: "") -> Any:
    """Look until the condition holds, and return what it gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain. {explain()}"
        time.sleep(0.1)
    return found
