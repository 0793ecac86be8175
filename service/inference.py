"""Embeds new nodes and classifies: asks a process that has torch, which the API itself never loads (service.peers).

One peer per API process, a child of its own or a connection to an encoder elsewhere (NML_ENCODER_ADDRESS), started when
first asked, one request at a time; it ends when nobody has asked for a while. A request that takes too long, is
cancelled or kills the peer costs that peer its life, never the next request its answer: frames can only follow each
other while both sides are in step. Opening a version (loading torch, encoder and graph) has a limit of its own: no
request could ever be answered if it counted, and a large graph took longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.peers import Peer, connect, converse, start_child
from service.settings import Settings
from trainer.errors import Infrastructure, InvalidInput
from trainer.inference import frames
from trainer.inference.process import COMMAND

MOST_WAITING = 16
_ARRAYS = {"embed": ("vectors",), "classify": ("rows", "classes", "confidence")}  # of an answer
OPENING_SECONDS = 600.0  # for torch, an encoder and its graph, which stay open for later requests

Arrays = Mapping[str, NDArray[Any]]


class Inference:
    """The peer and the queue before it.

    Args:
        command: what is started, unless the settings name an encoder; tests put another in its place.
    """

    def __init__(self, settings: Settings, *, command: tuple[str, ...] = COMMAND):
        self._settings, self._command = settings, command
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._peer: Peer | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def embed(self, directory: Path, head: dict[str, Any], arrays: Arrays) -> NDArray[np.float32]:
        """Vectors of new nodes, [m, dim].

        Args:
            directory: of the version.
            head: {"nodes": m}.
            arrays: features [m, F] or indptr, indices, values, widths; edge_node, edge_other, edge_weight,
                edge_direction, replaces; see trainer/inference/new_nodes.py.

        Raises:
            InvalidInput: the request is at fault.
            Infrastructure: the graph is gone, torch is not installed, the peer died or cannot be reached, or too many
                are waiting.
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
        """End the peer; a request that is being answered fails."""
        self._closed = True
        self._forget_idle()
        if self._peer is not None:
            self._kill(self._peer)
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
                answer, found = await self._exchange(opening, OPENING_SECONDS, late, ())
                if "error" not in answer:
                    seconds = self._settings.inference_seconds
                    late = f"no answer within {seconds:g} seconds. Send fewer nodes or labels at a time"
                    answer, found = await self._exchange(parts, seconds, late, _ARRAYS[do])
            finally:
                self._lock.release()
        finally:
            self._waiting -= 1
        failure = answer.get("error")
        if failure is None:
            return answer["ok"], found
        raise (InvalidInput if failure["kind"] == "invalid" else Infrastructure)(failure["message"])

    async def _exchange(
        self, parts: list[bytes | memoryview], seconds: float, late: str, wanted: Collection[str]
    ) -> tuple[dict[str, Any], frames.Arrays]:
        """Send one frame and read one. Whatever goes wrong on the way, the peer is not used again.

        Args:
            late: what to say if it takes longer.
            wanted: the arrays that come with a good answer.
        """
        if self._closed:
            raise Infrastructure("the service is stopping. Try again later")
        self._forget_idle()
        peer = None
        try:
            async with asyncio.timeout(seconds) as limit:
                peer = await self._ready()
                answer = await converse(peer, parts)
                _check(*answer, wanted)
        except (OSError, asyncio.IncompleteReadError, frames.FrameError) as error:
            if limit.expired():
                raise TimeoutError(late) from None
            raise Infrastructure(peer.lost if peer is not None else str(error)) from error
        else:
            if not _is_last(answer[0]):
                self._idle = asyncio.get_running_loop().call_later(self._settings.inference_idle_seconds, self._rest)
                peer = None
            return answer
        finally:
            if peer is not None:
                self._kill(peer)

    async def _ready(self) -> Peer:
        """The peer we have, else another."""
        if self._peer is not None:
            if not self._peer.gone:
                return self._peer
            self._kill(self._peer)  # lets go of what it held
        if self._settings.encoder_address is not None:
            peer: Peer = await connect(self._settings.encoder_address, self._settings.encoder_token or "")
        else:
            peer = await start_child(self._command, self._settings.home)
        self._peer = peer
        if self._closed:  # meanwhile
            self._kill(peer)
            raise Infrastructure("the service is stopping. Try again later")
        return peer

    def _rest(self) -> None:
        """Nobody has asked for a while."""
        self._idle = None
        if self._peer is not None and not self._lock.locked():
            peer, self._peer = self._peer, None
            self._follow(peer.end())

    def _kill(self, peer: Peer) -> None:
        """Without waiting, so that a cancelled request can do it."""
        if self._peer is peer:
            self._peer = None
        peer.kill()
        self._follow(peer.end())

    def _follow(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _forget_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def _check(answer: dict[str, Any], arrays: frames.Arrays, wanted: Collection[str]) -> None:
    """Raises FrameError unless it is an answer, with what belongs to it: the peer may be of another version."""
    failure = answer.get("error")
    if failure is not None:
        if not (isinstance(failure, dict) and all(isinstance(failure.get(key), str) for key in ("kind", "message"))):
            raise frames.FrameError("an error that does not say what it is")
        return
    if not isinstance(answer.get("ok"), dict) or not arrays.keys() >= set(wanted):
        raise frames.FrameError(f"an answer without {', '.join(('ok', *wanted))}")
    if "vectors" in wanted and (arrays["vectors"].dtype != np.float32 or arrays["vectors"].ndim != 2):
        raise frames.FrameError("vectors that are none")


def _is_last(answer: dict[str, Any]) -> bool:
    """Whether an encoder has said why it sends us away."""
    failure = answer.get("error")
    return isinstance(failure, dict) and failure.get("last") is True
