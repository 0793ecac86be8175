"""An encoder server on the network, for APIs that have no torch: `python -m service.encoder --listen=HOST:PORT`.

It never loads torch itself. Each question goes to a process (service.encoder.process), which ends if the question
takes too long or its client disconnects: a broken question costs that process, and never the server.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from service.encoder.address import KEEP_ALIVE, Address
from service.encoder.app import create_app
from service.encoder.messages import Question
from service.encoder.process import COMMAND, EncoderProcess
from service.net.bounded_http import bounded_http
from service.net.places import Places
from trainer.errors import Infrastructure

MAX_CONNECTIONS = 4_096  # open at a time, whoever they are; only those with the token get further
FREE_SECONDS = 2.0  # how long a question waits for a process

log = logging.getLogger("service.encoder")


class Processes:
    """So many processes at most; the one used last, which has a version open, is asked first."""

    def __init__(self, home: Path, count: int, command: tuple[str, ...] = COMMAND):
        self._all = [EncoderProcess(home, command=command) for _ in range(count)]
        self._free = list(self._all)
        self._semaphore = asyncio.Semaphore(count)

    async def ask(self, question: Question) -> bytes:
        """See EncoderProcess.ask. Raises Infrastructure, too, if all are busy."""
        try:
            async with asyncio.timeout(FREE_SECONDS):
                await self._semaphore.acquire()
        except TimeoutError:
            raise Infrastructure(f"busy: {len(self._all)} connections are in use. Try again later") from None
        process = self._free.pop()
        try:
            return await process.ask(question)
        finally:
            self._free.append(process)
            self._semaphore.release()

    async def close(self) -> None:
        await asyncio.gather(*(process.close() for process in self._all))


def listen(address: Address, token: str, home: Path, *, connections: int, command: tuple[str, ...] = COMMAND) -> None:
    """Serve until SIGTERM or SIGINT, and exit with 0.

    Args:
        connections: questions at a time, each answered by a process of its own.

    Raises:
        Infrastructure: the address cannot be listened on.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(where[:2], family=family, backlog=128)
    except OSError as error:
        raise Infrastructure(f"cannot listen on {address} ({error.strerror or error}).") from error
    for option in KEEP_ALIVE:  # connections inherit it
        listening.setsockopt(*option)
    processes = Processes(home, connections, command)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await processes.close()

    log.info("encoder on %s, home %s", Address(*listening.getsockname()[:2]), home)
    run(create_app(processes.ask, token=token, lifespan=lifespan), listening)


def run(app: FastAPI, listening: socket.socket) -> None:
    """Serve the app under uvicorn until SIGTERM or SIGINT, and exit with 0."""
    for number in (signal.SIGTERM, signal.SIGINT):  # which uvicorn raises again when it has stopped
        signal.signal(number, lambda *_: sys.exit(0))
    places = Places(MAX_CONNECTIONS, waiting_per_address=MAX_CONNECTIONS, kept=(0, 0))  # its clients are our own
    config = uvicorn.Config(
        app, http=bounded_http(places), ws="none", access_log=False, server_header=False,
        proxy_headers=False, log_config=None,
        timeout_keep_alive=75,  # longer than clients keep a connection, so that it is they who close it
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])
