"""A process with torch that answers questions over a Unix socket: started when first asked, ended when it is idle.

A computation cannot be interrupted. So a question that takes too long, is cancelled or breaks the process costs that
process its life; the next question starts another. The socket is in a folder of its own that only we may enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.encoder.messages import MessageError, Question, ask
from trainer.errors import Infrastructure
from trainer.parallel.connection import python_path
from trainer.planning.cpus import usable_cpus

COMMAND = (sys.executable, "-P", "-m", "service.encoder")  # -P: a file in the current folder is no module of ours
OPENING_SECONDS = 600.0  # for torch, an encoder and its graph, which stay open for later questions
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "NML_DATA")


def environment(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """The variables that the process gets, and no others: above all no password and no token."""
    threads = environ.get("OMP_NUM_THREADS") or str(max(1, usable_cpus() // 2))
    passed = {name: environ[name] for name in _PASSED_ON if name in environ}
    return passed | python_path(environ) | {"NML_HOME": str(home), "OMP_NUM_THREADS": threads}


@dataclass(frozen=True)
class _Running:
    process: Process
    client: httpx.AsyncClient
    folder: str  # of the socket

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        await self.client.aclose()
        await self.process.wait()


class EncoderProcess:
    """At most one process at a time, and one question at a time.

    Args:
        command: what is started; tests put another in its place.
    """

    def __init__(self, home: Path, *, command: tuple[str, ...] = COMMAND):
        self._home, self._command = home, command
        self._running: _Running | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ask(self, question: Question) -> bytes:
        """The answer. The version is opened first, with a time limit of its own: a large graph takes a while.

        Raises:
            InvalidInput: the question is at fault.
            Infrastructure: the process cannot start, died, or could not compute it.
            TimeoutError: the version could not be opened within OPENING_SECONDS, or the computation took too long.
        """
        if self._idle is not None:
            self._idle.cancel()
        try:
            late = f"the version could not be opened within {OPENING_SECONDS:g} seconds"
            await self._ask(question._replace(message=b""), OPENING_SECONDS, late)
            late = f"no answer within {question.seconds:g} seconds. Send fewer nodes or labels at a time"
            return await self._ask(question, question.seconds, late)
        finally:
            self._idle = asyncio.get_running_loop().call_later(question.idle_seconds, self.kill)

    async def _ask(self, question: Question, seconds: float, late: str) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                return await ask((await self._ready()).client, question)
        except TimeoutError:
            self.kill()
            raise TimeoutError(late) from None
        except (httpx.HTTPError, MessageError) as error:
            self.kill()
            raise Infrastructure("the encoder process died. Send less at a time, or try again") from error
        except asyncio.CancelledError:
            self.kill()
            raise

    async def _ready(self) -> _Running:
        """The process we have, else a new one."""
        if self._running is None or self._running.process.returncode is not None:
            self.kill()  # removes what is left of it
            folder = tempfile.mkdtemp(prefix="nml-encoder-")  # mode 0700
            try:
                self._running = await self._start(folder)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, OSError):
                    raise Infrastructure(f"the encoder process cannot start ({error})") from error
                raise
        if self._closed:
            self.kill()
            raise Infrastructure("the service is stopping. Try again later")
        return self._running

    async def _start(self, folder: str) -> _Running:
        path = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX) as listening:  # here, so that questions wait while the process starts
            listening.bind(path)
            os.chmod(path, 0o600)
            listening.listen()
            process = await asyncio.create_subprocess_exec(
                *self._command, f"--fd={listening.fileno()}", pass_fds=(listening.fileno(),), stdin=PIPE,
                env=environment(os.environ, self._home),
                start_new_session=True,  # an interrupt at the terminal is ours to handle
            )  # fmt: skip
        transport = httpx.AsyncHTTPTransport(uds=path)
        client = httpx.AsyncClient(transport=transport, base_url="http://encoder", timeout=None, trust_env=False)
        return _Running(process, client, folder)

    def kill(self) -> None:
        """End the process, without waiting, so that a cancelled question can do it."""
        if self._running is not None:
            task = asyncio.get_running_loop().create_task(self._running.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._running = None

    async def close(self) -> None:
        """End the process; a question that is being answered fails."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        self.kill()
        await asyncio.gather(*self._ending, return_exceptions=True)
