"""An encoder on the network: `python -m trainer.inference --listen=HOST:PORT`, for an API that has no torch.

    {"do": "hello", "token": T}   -> {"ok": {}}
    a peer that is sent away      -> {"error": {"kind": "infra", "message", "last": true}}, and the end
    then as over stdin and stdout (trainer.inference.__main__)

The listener itself never loads torch. The first frame after the hello starts a process of its own, which gets the
connection as stdin and stdout: what a request breaks is that process, and with it that connection. It ends with its
peer, and with the listener. A peer without the token costs a socket for a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import socket
from asyncio.subprocess import Process
from pathlib import Path

from trainer.errors import Infrastructure
from trainer.inference import frames
from trainer.inference.address import Address, keep_alive
from trainer.inference.process import COMMAND, environment

CONNECTIONS = 8  # processes at a time
HELLO_BYTES = 4096
HELLO_SECONDS = 10.0
FIRST_SECONDS = 60.0  # from the hello to the first request
FREE_SECONDS = 2.0  # one process may be about to end when the next is asked for
_ARRIVING = 256  # connections that have no process yet
_DRAIN_BYTES, _DRAIN_SECONDS = 1 << 20, 2.0
_AGAIN_SECONDS = 0.2

log = logging.getLogger("trainer.inference")


class Refused(Exception):
    """Why a peer is sent away."""


class Listener:
    """Takes connections and starts a process for each that may have one.

    Args:
        token: what a peer must say first.
        home: only versions below its folder `embeddings` are opened.
        connections: processes at a time.
        command: what is started; tests put another in its place.
    """

    def __init__(self, token: str, home: Path, *, connections: int = CONNECTIONS, command: tuple[str, ...] = COMMAND):
        self._token = token.encode()
        self._command = (*command, f"--home={home}", f"--parent={os.getpid()}")
        self._environment = environment(os.environ, home)
        self._connections = connections
        self._free = asyncio.Semaphore(connections)
        self._arriving: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}  # of those, who has not said hello yet; oldest first
        self._processes: set[Process] = set()
        self._watching: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Until cancelled; then every process is ended. `listening` is closed."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        try:
            while True:
                try:
                    peer, _ = await loop.sock_accept(listening)
                except OSError as error:  # the peer is gone again, or there are too many open files
                    log.warning("a connection cannot be taken: %s", error)
                    await asyncio.sleep(_AGAIN_SECONDS)
                    continue
                if len(self._arriving) >= _ARRIVING and not self._leave_a_stranger():
                    peer.close()
                    continue
                task = loop.create_task(self._attend(peer))
                self._strangers[task] = None
                _follow(self._arriving, task)
        finally:
            listening.close()
            for task in self._arriving:
                task.cancel()
            await asyncio.gather(*self._arriving, return_exceptions=True)
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await asyncio.gather(*self._watching, return_exceptions=True)

    def _leave_a_stranger(self) -> bool:
        """Make room for who has just come; those who keep silent longest go first. False: all have said hello."""
        task = next(iter(self._strangers), None)
        if task is not None:
            del self._strangers[task]
            task.cancel()
        return task is not None

    async def _attend(self, peer: socket.socket) -> None:
        """From the first byte of a connection until its process has it."""
        with peer:
            try:
                peer.setblocking(False)
                keep_alive(peer)
                try:
                    await self._greet(peer)
                finally:
                    task = asyncio.current_task()
                    assert task is not None
                    self._strangers.pop(task, None)
                async with asyncio.timeout(FIRST_SECONDS):
                    if not await _has_sent(peer):
                        return
                await self._hand_over(peer)
            except Refused as error:
                log.warning("a peer is sent away: %s", error)
                await _send_away(peer, str(error))
            except (OSError, TimeoutError):
                pass  # it is gone, or has nothing to say
            except Exception as error:
                log.error("unexpected: %s", error, exc_info=error)

    async def _greet(self, peer: socket.socket) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                length = frames.head_length(await _exactly(peer, frames.PREFIX_BYTES))
                if length > HELLO_BYTES:
                    raise Refused(f"a hello of {length} bytes; at most {HELLO_BYTES} are read")
                head, forms = frames.parse_head(await _exactly(peer, length))
        except frames.FrameError:
            raise Refused("this is no frame") from None
        except TimeoutError:
            raise Refused(f"no hello within {HELLO_SECONDS:g} seconds") from None
        token = head.get("token")
        if head.get("do") != "hello" or forms or not isinstance(token, str):
            raise Refused("the first frame must be a hello with a token")
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token):
            raise Refused("wrong token. API and encoder need the same NML_ENCODER_TOKEN")
        await _send(peer, {"ok": {}})

    async def _hand_over(self, peer: socket.socket) -> None:
        try:
            async with asyncio.timeout(FREE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise Refused(f"busy: {self._connections} connections are in use. Try again later") from None
        try:
            process = await self._started(peer)
        except BaseException:
            self._free.release()
            raise
        self._processes.add(process)
        _follow(self._watching, asyncio.get_running_loop().create_task(self._watch(process)))

    async def _started(self, peer: socket.socket) -> Process:
        peer.setblocking(True)  # the process shares the open file, and waits in its reads
        try:
            # From this thread, the main one: the process is told of its end, not of another's.
            return await asyncio.create_subprocess_exec(
                *self._command, stdin=peer.fileno(), stdout=peer.fileno(), env=self._environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            peer.setblocking(False)
            raise Refused(f"the process that computes cannot start ({error.strerror})") from error

    async def _watch(self, process: Process) -> None:
        code = await process.wait()
        self._processes.discard(process)
        self._free.release()
        if code:
            log.warning("process %d ended with %d", process.pid, code)


def listen(
    address: Address, token: str, home: Path, *, connections: int = CONNECTIONS, command: tuple[str, ...] = COMMAND
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. See `Listener`.

    Raises:
        Infrastructure: the address cannot be listened on.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(where[:2], family=family, backlog=128)
    except OSError as error:
        raise Infrastructure(f"cannot listen on {address} ({error.strerror or error}).") from error

    async def whole() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        listener = Listener(token, home, connections=connections, command=command)
        serving = loop.create_task(listener.serve(listening))
        serving.add_done_callback(lambda _: stop.set())  # it should not end by itself; if so, we do not stay
        log.info("encoder on %s, home %s", Address(*listening.getsockname()[:2]), home)
        await stop.wait()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    asyncio.run(whole())
    return 0


def check(address: Address, token: str, *, seconds: float = 5.0) -> None:
    """See that the encoder there takes the token; starts no process.

    Raises:
        Infrastructure: it does not, or nobody answers.
    """
    try:
        with socket.create_connection(address, timeout=seconds) as connection, connection.makefile("rb") as stream:
            connection.sendall(b"".join(frames.encode({"do": "hello", "token": token})))
            answer = frames.read(stream)
    except (OSError, frames.FrameError) as error:
        raise Infrastructure(f"the encoder at {address} does not answer ({error}).") from error
    if answer is None or "ok" not in answer[0]:
        told = "it broke off" if answer is None else (answer[0].get("error") or {}).get("message")
        raise Infrastructure(f"the encoder at {address} refuses: {told}.")


def _follow(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _exactly(peer: socket.socket, size: int) -> bytes:
    """The next bytes, and none beyond: those are for the process."""
    found = bytearray()
    while len(found) < size:
        part = await asyncio.get_running_loop().sock_recv(peer, size - len(found))
        if not part:
            raise ConnectionError("the peer left")
        found += part
    return bytes(found)


async def _has_sent(peer: socket.socket) -> bool:
    """Wait for the next bytes, which are left where they are; False if the peer leaves instead."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(peer, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(peer)
    return bool(peer.recv(1, socket.MSG_PEEK))


async def _send(peer: socket.socket, head: dict[str, object]) -> None:
    await asyncio.get_running_loop().sock_sendall(peer, b"".join(frames.encode(head)))


async def _send_away(peer: socket.socket, message: str) -> None:
    """Say why. What the peer had still to say is read: closed before it, the connection would lose our answer."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            await _send(peer, {"error": {"kind": "infra", "message": message, "last": True}})
            peer.shutdown(socket.SHUT_WR)
            left = _DRAIN_BYTES
            while left > 0 and (part := await asyncio.get_running_loop().sock_recv(peer, 1 << 16)):
                left -= len(part)
