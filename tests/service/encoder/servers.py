"""Encoder servers and clients for tests, and processes that answer as they are told to instead of computing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvloop

from service.encoder.client import EncoderClient

TOKEN = "a-token-of-tests,-long-enough"

# `python -m service.encoder --listen` with another worker than the command line offers.
_OTHER = """
import logging, sys
from pathlib import Path
from service.encoder import server
from service.encoder.address import Address
from service.net import bounded_http
port, token, home, connections, worker, head_seconds = sys.argv[1:]
bounded_http.HEAD_SECONDS = float(head_seconds)
logging.basicConfig(level=logging.INFO)
server.listen(Address("127.0.0.1", int(port)), token, Path(home), connections=int(connections),
              command=(sys.executable, "-P", "-c", worker))
"""

# A worker that answers what it is told to: its pid, after a while, not at all, or by dying.
FAKE = textwrap.dedent("""
    import os, sys, time
    import numpy as np
    from service.encoder.messages import pack, unpack
    from service.encoder.worker import answer_parent

    async def answer(question):
        if not question.message:
            time.sleep(float(question.version[5:]) if question.version.startswith("takes") else 0)
            return b""
        document, arrays = unpack(question.message)
        time.sleep(document.get("sleep", 0))
        if "die" in document:
            os._exit(9)
        if "pour" in document:
            return pack({}, {"vectors": np.zeros((document["pour"], 1), np.float32)})
        if "odd" in document:
            return [
                b"", b"this is not a message", pack({}, {}), pack({}, {"vectors": np.zeros((1, 1))}),
                pack({}, {"vectors": np.zeros(1, np.float32)}),
            ][document["odd"]]
        told = {"pid": os.getpid(), "n": document.get("n"), "environ": sorted(os.environ)}
        return pack(told, {name: np.zeros(0, np.int64) for name in ("rows", "classes", "confidence")})

    (fd,) = [int(word[5:]) for word in sys.argv if word.startswith("--fd=")]
    answer_parent(fd, answer)
""")


class EncoderServer:
    """Started, and listening.

    Args:
        worker: the code of another worker; None: the real command line and the real worker.
        head_seconds: with another worker, the time that a client has for the head of a request.
    """

    def __init__(
        self, home: Path, *, port: int = 0, connections: int = 8, worker: str | None = None, head_seconds: float = 20.0,
    ):  # fmt: skip
        if worker is None:
            command = ["-m", "service.encoder", f"--listen=127.0.0.1:{port}", f"--connections={connections}"]
        else:
            command = ["-c", _OTHER, str(port), TOKEN, str(home), str(connections), worker, str(head_seconds)]
        environ = {"OMP_NUM_THREADS": "1"} | os.environ | {"NML_HOME": str(home), "NML_ENCODER_TOKEN": TOKEN}
        self.process = subprocess.Popen([sys.executable, "-P", *command], env=environ, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        line = self.process.stderr.readline().decode()
        found = re.search(r"encoder on 127\.0\.0\.1:(\d+)", line)
        assert found, line
        self.port = int(found[1])
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> EncoderServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
            self.process.communicate(timeout=120)
        return self.process.returncode

    def workers(self) -> list[int]:
        """Its processes, by id."""
        pid = self.process.pid
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def post(self, operation: str = "embed", *, message: bytes = b"", token: str = TOKEN, **params: Any) -> Any:
        """The answer to a question."""
        params = {"version": "nothing", "seconds": 100, "idle_seconds": 100} | params
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://{self.address}/{operation}"
        return httpx.post(url, params=params, content=message, headers=headers, timeout=120)


def request_head(*, operation: str = "embed", length: int = 0, token: str = TOKEN) -> bytes:
    """The head of a question, for tests that send it over a socket of their own."""
    return (
        f"POST /{operation}?version=nothing&seconds=1000&idle_seconds=100 HTTP/1.1\r\nHost: encoder\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def run(home: Path, steps: Any, *, server: EncoderServer | None = None, **options: Any) -> Any:
    """Steps with an EncoderClient, which is closed after them; one that asks a server is on uvloop, as the API is."""
    if server is not None:
        options = {"address": server.address, "token": TOKEN} | options

    async def whole() -> Any:
        client = EncoderClient(home, **options)
        try:
            return await asyncio.wait_for(steps(client), 240)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=None if server is None else uvloop.new_event_loop) as runner:
        return runner.run(whole())


async def ask(client: EncoderClient, version: str = "nowhere", **document: Any) -> dict[str, Any]:
    return await client.classify(version, document, {"rows": np.arange(100_000)})


async def gone(pid: int) -> None:
    while alive(pid):
        await asyncio.sleep(0.02)


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What the condition gives as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def keeps_alive(local: int, remote: int) -> bool | None:
    """Whether the kernel's own list says that one end of a loopback connection has a keep-alive timer running.

    None if the list does not show it: one that changes while it is read may miss a line.
    """
    wanted = (f"0100007F:{local:04X}", f"0100007F:{remote:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == wanted:
            return fields[5].startswith("02:")
    return None
