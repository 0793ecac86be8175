"""A tracker for tests: an `mlflow server` of our own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Server:
    """Can be paused, or stopped and started again on the same port and database."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        store = ["--backend-store-uri", f"sqlite:///{self.folder}/server.db", "--artifacts-destination", "./files"]
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *store, *place],
            cwd=self.folder,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # its workers end with it
        )
        if wait:
            wait_until(self.answers, seconds=120)

    def answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.uri}/health", timeout=10).status == 200
        except OSError:
            return False

    def pause(self) -> None:
        """Take connections, as the kernel does it, and answer nothing."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


_HELD: list[socket.socket] = []  # ports given out by this process


def free_port() -> int:
    """A port on which nothing listens, kept for the caller's server until this process ends.

    The socket bound to it keeps the system from giving the port to anyone who asks for any. It does not listen, so
    that a server which sets SO_REUSEADDR, as all of ours do, can still take it by its number.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))  # on every address: some servers listen on others than 127.0.0.1
    _HELD.append(holder)
    return int(holder.getsockname()[1])


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def mlflow_client(uri: str) -> Any:
    from mlflow import MlflowClient  # seconds, which collecting these tests should not cost

    return MlflowClient(uri)
