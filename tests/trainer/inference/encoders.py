"""An encoder on the network for tests: `python -m trainer.inference --listen` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.inference import frames

TOKEN = "a token of tests, long enough".replace(" ", "-")

# The same with another worker, or with other limits than the command line offers.
_OTHER = """
import logging, sys
from pathlib import Path
from trainer.inference import listener
from trainer.inference.address import Address
port, token, home, connections, hello, worker = sys.argv[1:]
logging.basicConfig(level=logging.INFO)
listener.HELLO_SECONDS = float(hello)
command = (sys.executable, "-P", "-c", worker)
sys.exit(listener.listen(Address("127.0.0.1", int(port)), token, Path(home), connections=int(connections),
                         command=command))
"""


class EncoderProcess:
    """Started, and listening.

    Args:
        worker: the code of another worker; None: the real command line and the real worker.
    """

    def __init__(
        self, home: Path, *, port: int = 0, connections: int = 8, worker: str | None = None, hello_seconds: float = 120
    ):
        if worker is None:
            command = ["-m", "trainer.inference", f"--listen=127.0.0.1:{port}", f"--connections={connections}"]
        else:
            command = ["-c", _OTHER, str(port), TOKEN, str(home), str(connections), str(hello_seconds), worker]
        environ = {"OMP_NUM_THREADS": "1"} | os.environ | {"NML_HOME": str(home), "NML_ENCODER_TOKEN": TOKEN}
        self.process = subprocess.Popen([sys.executable, "-P", *command], env=environ, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        line = self.process.stderr.readline().decode()
        found = re.search(r"encoder on 127\.0\.0\.1:(\d+)", line)
        assert found, line
        self.port = int(found[1])
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> EncoderProcess:
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

    def peer(self, token: str = TOKEN) -> socket.socket:
        """A connection that has said hello."""
        connection = self.connect()
        send(connection, {"do": "hello", "token": token})
        assert receive(connection) == {"ok": {}}
        return connection


def send(connection: socket.socket, head: dict[str, Any]) -> None:
    connection.sendall(b"".join(frames.encode(head)))


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The head of the next frame; None if the other side has left instead."""
    prefix = exactly(connection, frames.PREFIX_BYTES)
    return None if prefix is None else frames.parse_head(exactly(connection, frames.head_length(prefix)) or b"")[0]


def exactly(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except ConnectionResetError:
            part = b""
        if not part:
            return None
        data += part
    return data


def reset(connection: socket.socket) -> None:
    """Close it without the usual farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


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
