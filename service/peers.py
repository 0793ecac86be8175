"""Who computes for the API: a child process that has torch, or an encoder elsewhere, over a connection.

Both are a stream to write frames to and one to read them from; what goes out of step is killed and never used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, Protocol

from trainer.errors import Infrastructure
from trainer.inference import frames
from trainer.inference.address import keep_alive, parse_address
from trainer.inference.process import environment

STREAM_BYTES = 8 << 20
CONNECT_SECONDS = 10.0
_HELLO_SECONDS = 15.0  # longer than the encoder waits for it: what it has to say is heard
_END_SECONDS = 5.0


class Peer(Protocol):
    """Answers one frame with one frame, in order."""

    lost: str  # what to say when it breaks off

    @property
    def reader(self) -> StreamReader: ...

    @property
    def writer(self) -> StreamWriter: ...

    @property
    def gone(self) -> bool:
        """Whether it has left already, so that another is needed."""

    def kill(self) -> None:
        """At once and without waiting, so that a cancelled request can do it."""

    async def end(self) -> None:
        """Close the streams, at which it leaves, and see that it does."""


async def converse(peer: Peer, parts: list[bytes | memoryview]) -> tuple[dict[str, Any], frames.Arrays]:
    """Send a frame and read one.

    Raises:
        OSError, asyncio.IncompleteReadError, frames.FrameError: the peer broke off, or sends something else.
    """
    for part in parts:
        peer.writer.write(part)
        await peer.writer.drain()
    reader = peer.reader
    prefix = await reader.readexactly(frames.PREFIX_BYTES)
    head, forms = frames.parse_head(await reader.readexactly(frames.head_length(prefix)))
    return head, {form.name: form.array(await reader.readexactly(form.nbytes)) for form in forms}


class Child:
    """A process of our own."""

    lost = "the process that computes new nodes and classes died. Ask for less at a time, or try again"

    def __init__(self, process: Process):
        self.process = process

    @property
    def reader(self) -> StreamReader:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def writer(self) -> StreamWriter:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def gone(self) -> bool:
        return self.process.returncode is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        self.writer.close()
        # Process has no public way to its transport. In the middle of a large answer nobody reads the pipe any more:
        # its end would never be seen, `wait` not return, and the descriptor and what was read stay with us.
        stdout = self.process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
        if stdout is not None:
            stdout.close()
        try:
            await asyncio.wait_for(self.process.wait(), _END_SECONDS)
        except TimeoutError:
            self.kill()
            await self.process.wait()


async def start_child(command: tuple[str, ...], home: Path) -> Child:
    """Raises Infrastructure if it cannot be started."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=environment(os.environ, home), limit=STREAM_BYTES,
            start_new_session=True,  # an interrupt at the terminal is ours to handle
        )  # fmt: skip
    except OSError as error:
        raise Infrastructure(f"the process that computes new nodes and classes cannot start ({error})") from error
    return Child(process)


class Connection:
    """An encoder elsewhere, which has a process for us while we are connected."""

    def __init__(self, address: str, reader: StreamReader, writer: StreamWriter):
        self.lost = f"the encoder at {address} broke off. Ask for less at a time, or try again"
        self.reader, self.writer = reader, writer

    @property
    def gone(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None or self.writer.is_closing()

    def kill(self) -> None:
        self.writer.transport.abort()

    async def end(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self.writer.wait_closed()
        self.kill()


async def connect(address: str, token: str) -> Connection:
    """Greet the encoder at host:port.

    Raises:
        Infrastructure: it is not there, or does not take the token.
    """
    hint = "See that it runs, and that NML_ENCODER_ADDRESS is right"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*parse_address(address), limit=STREAM_BYTES)
    except (OSError, TimeoutError, UnicodeError) as error:  # UnicodeError: a name that no resolver takes
        found = str(error) or f"no answer within {CONNECT_SECONDS:g} seconds"
        raise Infrastructure(f"the encoder at {address} cannot be reached ({found}). {hint}") from error
    peer = Connection(address, reader, writer)
    try:
        keep_alive(writer.get_extra_info("socket"))
        async with asyncio.timeout(_HELLO_SECONDS):
            answer, _ = await converse(peer, frames.encode({"do": "hello", "token": token}))
    except BaseException as error:
        peer.kill()
        if isinstance(error, OSError | asyncio.IncompleteReadError | frames.FrameError):  # a TimeoutError too
            raise Infrastructure(f"the encoder at {address} cannot be reached (it says no hello). {hint}") from error
        raise
    if "ok" not in answer:
        peer.kill()
        told = answer.get("error")
        message = told.get("message") if isinstance(told, dict) else "it is none of ours"
        raise Infrastructure(f"the encoder at {address} refuses us: {message}")
    return peer
