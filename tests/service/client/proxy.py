"""A TCP proxy that breaks connections, to see what a client makes of answers that never come or come in pieces."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

FIRST_LINE = b"\r\n"


@dataclass
class Proxy:
    """Passes everything to `target`; of the answers by a connection so many bytes, then it hangs up or falls silent.

    Attributes:
        budgets: bytes of answers that each of the next connections lets through; when the list is empty, all.
        every: of each connection, if not None; goes before `budgets`.
        silent: does not hang up after that: nothing comes any more, until the client hangs up.
        lost: methods of requests that reach the target and whose answer does not come back, once for each entry.
        requests: first line of each request that the target has received whole.
    """

    target: tuple[str, int]
    budgets: list[int] = field(default_factory=list)
    every: int | None = None
    silent: bool = False
    lost: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def _serve(self, client: socket.socket) -> None:
        left = self.every if self.every is not None else self.budgets.pop(0) if self.budgets else None
        doomed, gone = threading.Event(), threading.Event()
        with client, socket.create_connection(self.target) as server:
            threading.Thread(target=self._upstream, args=(client, server, doomed, gone), daemon=True).start()
            with suppress(OSError):
                while piece := server.recv(65_536):  # the target has taken the request and begins to answer
                    if doomed.is_set():
                        break
                    client.sendall(piece if left is None else piece[:left])
                    if left is not None:
                        left -= len(piece)
                        if left <= 0:
                            if self.silent:
                                gone.wait()
                            break
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _upstream(
        self, client: socket.socket, server: socket.socket, doomed: threading.Event, gone: threading.Event
    ) -> None:
        with suppress(OSError):
            while piece := client.recv(65_536):
                method = piece.split(b" ")[0]
                if method in (b"GET", b"POST", b"PUT", b"DELETE"):
                    self.requests.append(piece.split(FIRST_LINE)[0].decode())
                    if method.decode() in self.lost:
                        self.lost.remove(method.decode())
                        doomed.set()
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)
        gone.set()


@contextmanager
def proxying(url: str) -> Iterator[Proxy]:
    """A proxy before the server at `url`."""
    host, _, port = url.removeprefix("http://").partition(":")
    proxy = Proxy((host, int(port)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> None:
            with suppress(OSError):  # the listener was closed
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=proxy._serve, args=(connection,), daemon=True).start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # closing it would not wake who waits for a connection
            accepting.join()
