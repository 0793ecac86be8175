"""The API as a process of its own, which can be killed and started again at the same address."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from service.settings import Settings


@dataclass
class ApiProcess:
    """uvicorn with the real app."""

    settings: Settings
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    def start(self) -> None:
        """Returns when it answers."""
        command = [
            sys.executable, "-m", "uvicorn", "--factory", "service.app:from_environment", "--port",
            str(self.settings.port), "--log-level", "error",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, env={**os.environ, **self.settings.environment()})
        while True:
            assert self.process.poll() is None, "the API ended"
            try:
                if httpx.get(f"{self.url}/livez", timeout=60, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def api_process(settings: Settings) -> Iterator[ApiProcess]:
    api = ApiProcess(settings)
    api.start()
    try:
        yield api
    finally:
        api.kill()
