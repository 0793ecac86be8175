"""Embeds new nodes and classifies: asks a child process that has torch, which the API itself never loads.

One child per API process, started when first asked, one request at a time; it ends when nobody has asked for a while.
A request that takes too long, is cancelled or kills the child costs that child its life, never the next request its
answer: frames can only follow each other while both sides are in step. Opening a version (loading torch, encoder and
graph) has a limit of its own: no request could ever be answered if it counted, and a large graph took longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.settings import Settings
from trainer.errors import Infrastructure, InvalidInput
from trainer.inference import frames
from trainer.parallel.connection import python_path

MOST_WAITING = 16
OPENING_SECONDS = 600.0  # for torch, an encoder and its graph, which stay open for later requests
_STREAM_BYTES = 8 << 20
_END_SECONDS = 5.0
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "NML_DATA")

Arrays = Mapping[str, NDArray[Any]]


class Inference:
    """The child and the queue before it.

    Args:
        command: what is started; tests put another in its place.
    """

    def __init__(self, settings: Settings, *, command: tuple[str, ...] | None = None):
        self._settings = settings
        self._command = command or (sys.executable, "-P", "-m", "trainer.inference")  # -P: see dispatch.orders
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._child: Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def embed(self, directory: Path, head: dict[str, Any], arrays: Arrays) -> NDArray[np.float32]:
        """Vectors of new nodes, [m, dim].

        Args:
            directory: of the version.
            head: {"nodes": m}.
            arrays: features [m, F] or indptr, indices, values; edge_node, edge_other, edge_weight, edge_direction,
                replaces; see trainer/inference/new_nodes.py.

        Raises:
            InvalidInput: the request is at fault.
            Infrastructure: the graph is gone, torch is not installed, the child died, or too many are waiting.
            TimeoutError: it took longer than `inference_seconds`, or its turn did not come within that, or the version
                could not be opened within OPENING_SECONDS.
        """
        _, found = await self._ask("embed", directory, head, arrays)
        return found["vectors"]

    async def classify(self, directory: Path, head: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
        """Figures and predictions, see trainer/inference/classify.py, with the arrays rows, classes and confidence.

        Args:
            head: {"classes": C, "seed": s}.
            arrays: rows [n], labels [n] and perhaps predict [p], all int64.

        Raises:
            InvalidInput, Infrastructure, TimeoutError: as `embed`.
        """
        figures, found = await self._ask("classify", directory, head, arrays)
        return {**figures, **found}

    async def close(self) -> None:
        """End the child; a request that is being answered fails."""
        self._closed = True
        self._forget_idle()
        if self._child is not None:
            self._kill(self._child)
        if self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)

    async def _ask(
        self, do: str, directory: Path, head: dict[str, Any], arrays: Arrays
    ) -> tuple[dict[str, Any], frames.Arrays]:
        if self._waiting > MOST_WAITING:
            raise Infrastructure(f"busy: {MOST_WAITING} requests for new nodes or classes are waiting. Try again later")
        try:
            opening = frames.encode({"do": "open", "directory": str(directory), "head": {"to": do}})
            parts = frames.encode({"do": do, "directory": str(directory), "head": head}, arrays)
        except (frames.FrameError, ValueError, TypeError) as error:
            raise InvalidInput(f"this cannot be sent to be computed: {error}") from error
        self._waiting += 1
        try:
            async with asyncio.timeout(self._settings.inference_seconds):
                await self._lock.acquire()
            try:
                late = f"the version could not be opened within {OPENING_SECONDS:g} seconds"
                answer, found = await self._exchange(opening, OPENING_SECONDS, late)
                if "error" not in answer:
                    seconds = self._settings.inference_seconds
                    late = f"no answer within {seconds:g} seconds. Send fewer nodes or labels at a time"
                    answer, found = await self._exchange(parts, seconds, late)
            finally:
                self._lock.release()
        finally:
            self._waiting -= 1
        failure = answer.get("error")
        if failure is None:
            return answer["ok"], found
        raise (InvalidInput if failure["kind"] == "invalid" else Infrastructure)(failure["message"])

    async def _exchange(
        self, parts: list[bytes | memoryview], seconds: float, late: str
    ) -> tuple[dict[str, Any], frames.Arrays]:
        """Send one frame and read one. Whatever goes wrong on the way, the child is not used again."""
        if self._closed:
            raise Infrastructure("the service is stopping. Try again later")
        self._forget_idle()
        child = None
        try:
            async with asyncio.timeout(seconds):
                child = await self._started()
                answer = await _converse(child, parts)
        except (ConnectionError, asyncio.IncompleteReadError, frames.FrameError) as error:
            raise Infrastructure(
                "the process that computes new nodes and classes died. Ask for less at a time, or try again"
            ) from error
        except TimeoutError:
            raise TimeoutError(late) from None
        else:
            self._idle = asyncio.get_running_loop().call_later(self._settings.inference_idle_seconds, self._rest)
            child = None
            return answer
        finally:
            if child is not None:
                self._kill(child)

    async def _started(self) -> Process:
        if self._child is not None and self._child.returncode is None:
            return self._child
        try:
            self._child = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, env=self._environment(), limit=_STREAM_BYTES,
                start_new_session=True,  # an interrupt at the terminal is ours to handle
            )  # fmt: skip
        except OSError as error:
            raise Infrastructure(f"the process that computes new nodes and classes cannot start ({error})") from error
        return self._child

    def _environment(self) -> dict[str, str]:
        """What the child gets, and nothing else: above all no password."""
        environ = os.environ
        threads = environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // 2))
        passed = {name: environ[name] for name in _PASSED_ON if name in environ}
        return passed | python_path(environ) | {"NML_HOME": str(self._settings.home), "OMP_NUM_THREADS": threads}

    def _rest(self) -> None:
        """Nobody has asked for a while."""
        self._idle = None
        if self._child is not None and not self._lock.locked():
            child, self._child = self._child, None
            self._follow(_end(child))

    def _kill(self, child: Process) -> None:
        """Without waiting, so that a cancelled request can do it."""
        if self._child is child:
            self._child = None
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        self._follow(_end(child))

    def _follow(self, ending: Any) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _forget_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


async def _converse(child: Process, parts: list[bytes | memoryview]) -> tuple[dict[str, Any], frames.Arrays]:
    assert child.stdin is not None
    assert child.stdout is not None
    for part in parts:
        child.stdin.write(part)
        await child.stdin.drain()
    prefix = await child.stdout.readexactly(frames.PREFIX_BYTES)
    head, forms = frames.parse_head(await child.stdout.readexactly(frames.head_length(prefix)))
    return head, {form.name: form.array(await child.stdout.readexactly(form.nbytes)) for form in forms}


async def _end(child: Process) -> None:
    """Close its pipes, at which it leaves, and see that it does."""
    if child.stdin is not None:
        child.stdin.close()
    # Process has no public way to its transport. In the middle of a large answer nobody reads the pipe any more: its
    # end would never be seen, `wait` not return, and the descriptor and what was read stay with us.
    stdout = child._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
    if stdout is not None:
        stdout.close()
    try:
        await asyncio.wait_for(child.wait(), _END_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
