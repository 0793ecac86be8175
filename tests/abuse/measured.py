"""The API as a process of its own, with a meter: how much memory a request costs it, and how long others wait."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path

from service.serve_api import listening_socket
from service.settings import Settings

PROBE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
ALIVE = b'{"status":"alive"}'
PAUSE = 0.005  # seconds between two probes
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Cost:
    """What something cost the API's process and everybody else."""

    megabytes: float  # peak of its resident memory, above what it was before
    seconds: float  # the longest that a probe beside it waited


@dataclass
class MeasuredApi:
    """`python -m service.serve_api` on a port of its own."""

    process: subprocess.Popen[bytes]
    port: int

    def memory(self, name: str) -> float:
        """Megabytes: VmRSS, what it has in memory; VmHWM, the most since the last `clear`."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1_024

    def clear(self) -> None:
        """Let the peak start again from here."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    @contextmanager
    def measuring(self) -> Iterator[list[Cost]]:
        """The cost of what is done meanwhile; in the list at the end."""
        costs: list[Cost] = []
        before = self.memory("VmRSS")
        self.clear()
        with self._probing() as waits:
            yield costs
        costs.append(Cost(self.memory("VmHWM") - before, max(waits)))

    @contextmanager
    def _probing(self) -> Iterator[list[float]]:
        """Ask for /livez again and again in a thread, and note how long each answer took."""
        waits: list[float] = [0.0]
        done, failed = threading.Event(), []

        def probe() -> None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=120) as link:
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while not done.wait(PAUSE):
                        began = time.perf_counter()
                        link.sendall(PROBE)
                        answer = b""
                        while not answer.endswith(ALIVE):
                            piece = link.recv(65_536)
                            assert piece, f"the connection ended after {answer!r}"
                            answer += piece
                        waits.append(time.perf_counter() - began)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=probe)
        thread.start()
        try:
            yield waits
        finally:
            done.set()
            thread.join()
        assert not failed, f"the probe failed: {failed}"

    def ask(self, method: str, target: str, headers: dict[str, str], body: bytes | None, *, most: int = 1 << 30) -> int:
        """Status of the answer, which is read whole, or up to `most` bytes; 0: the connection was closed instead."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value.encode())
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            try:
                for at in range(0, len(body or b""), MEGABYTE):
                    connection.send(memoryview(body or b"")[at : at + MEGABYTE])
            except OSError:
                pass  # it has answered, and does not want the rest
            answer = connection.getresponse()
            _read(answer, most)
            return answer.status
        except (OSError, HTTPException):
            return 0
        finally:
            connection.close()


def _read(answer: HTTPResponse, most: int) -> None:
    endless = answer.headers.get_content_type() == "text/event-stream"  # its first piece will do
    left = most
    while left > 0 and (piece := answer.read1(65_536)):
        left = 0 if endless else left - len(piece)


@contextmanager
def measured_api(settings: Settings) -> Iterator[MeasuredApi]:
    """Started, and answering."""
    with listening_socket("127.0.0.1", 0) as listener:
        command = [sys.executable, "-m", "service.serve_api", f"--fd={listener.fileno()}"]
        environment = {**os.environ, **settings.environment()}
        process = subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()])
        api = MeasuredApi(process, listener.getsockname()[1])
        try:
            while api.ask("GET", "/livez", {}, None) != 200:
                assert process.poll() is None, "the API ended"
                time.sleep(0.05)
            yield api
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
