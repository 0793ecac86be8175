"""What the API uses to embed new nodes and to classify: a process of its own, or an encoder server elsewhere.

One question at a time per API process, and a bounded queue before it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from service.encoder.address import KEEP_ALIVE
from service.encoder.messages import Arrays, MessageError, Question, ask, pack, raise_for_status, unpack
from service.encoder.process import COMMAND, OPENING_SECONDS, EncoderProcess
from trainer.errors import Infrastructure

MAX_WAITING = 16
CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 15.0
_SPARE_SECONDS = 60.0  # for bodies to travel; the server keeps the time of the computation itself


class EncoderClient:
    """Asks an encoder.

    Args:
        home: where versions are, for a process of our own.
        address, token: of an encoder server; none: a process of our own.
        seconds: longest time for a computation, and for a question to wait for its turn.
        idle_seconds: how long a process is kept that nobody asks.
        command: what is started as a process of our own; tests put another in its place.
    """

    def __init__(
        self, home: Path, *, address: str | None = None, token: str | None = None, seconds: float = 120.0,
        idle_seconds: float = 600.0, command: tuple[str, ...] = COMMAND,
    ):  # fmt: skip
        self._seconds, self._idle_seconds = seconds, idle_seconds
        self._encoder = RemoteEncoder(address, token or "") if address else EncoderProcess(home, command=command)
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._closed = False

    async def embed(self, version: str, document: dict[str, Any], arrays: Arrays) -> NDArray[np.float32]:
        """Vectors of new nodes, [m, dim].

        Args:
            document: {"nodes": m}.
            arrays: features [m, F] or indptr, indices, values, widths; edge_node, edge_other, edge_weight,
                edge_direction, replaces; see trainer/inference/new_nodes.py.

        Raises:
            InvalidInput: the question is at fault.
            Infrastructure: the graph is gone, torch is not installed, the encoder died or cannot be reached, or too
                many are waiting.
            TimeoutError: it took longer than `seconds`, or its turn did not come within that, or the version could
                not be opened in time.
        """
        _, found = await self._ask(version, "embed", document, arrays, ("vectors",))
        return found["vectors"]

    async def classify(self, version: str, document: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
        """Figures and predictions, see trainer/inference/classify.py, with the arrays rows, classes and confidence.

        Args:
            document: {"classes": C, "seed": s}.
            arrays: rows [n], labels [n] and perhaps predict [p], all int64.

        Raises:
            InvalidInput, Infrastructure, TimeoutError: as `embed`.
        """
        figures, found = await self._ask(version, "classify", document, arrays, ("rows", "classes", "confidence"))
        return {**figures, **found}

    async def close(self) -> None:
        """End the process, or the connection; a question that is being answered fails."""
        self._closed = True
        await self._encoder.close()

    async def _ask(
        self, version: str, operation: str, document: dict[str, Any], arrays: Arrays, expected: tuple[str, ...]
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        if self._waiting > MAX_WAITING:
            raise Infrastructure(f"busy: {MAX_WAITING} requests for new nodes or classes are waiting. Try again later")
        self._waiting += 1
        try:
            message = await asyncio.to_thread(pack, document, arrays)
            async with asyncio.timeout(self._seconds):
                await self._lock.acquire()
            try:
                if self._closed:
                    raise Infrastructure("the service is stopping. Try again later")
                question = Question(version, operation, message, self._seconds, self._idle_seconds)
                answer = await self._encoder.ask(question)
            finally:
                self._lock.release()
        finally:
            self._waiting -= 1
        try:
            figures, found = await asyncio.to_thread(unpack, answer)
            _check(found, expected)
        except MessageError as error:
            raise Infrastructure(f"the encoder gave an unexpected answer: {error}. Update API and encoder") from error
        return figures, found


class RemoteEncoder:
    """An encoder server on the network, at host:port."""

    def __init__(self, address: str, token: str):
        self._address = address
        self._client = httpx.AsyncClient(
            base_url=f"http://{address}", headers={"Authorization": f"Bearer {token}"}, trust_env=False,
            transport=httpx.AsyncHTTPTransport(socket_options=KEEP_ALIVE),
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        )  # fmt: skip

    async def ask(self, question: Question) -> bytes:
        """The answer.

        Raises:
            InvalidInput, TimeoutError: as the server says.
            Infrastructure: as the server says, or it cannot be reached, refuses the token or closes the connection.
        """
        await self.check()
        try:
            async with asyncio.timeout(OPENING_SECONDS + question.seconds + _SPARE_SECONDS):
                return await ask(self._client, question)
        except httpx.HTTPError as error:
            message = f"the encoder at {self._address} closed the connection. Send less at a time, or try again"
            raise Infrastructure(message) from error
        except MessageError as error:
            raise Infrastructure(f"the encoder at {self._address} gave an unexpected answer ({error})") from error

    async def check(self) -> None:
        """Raises Infrastructure unless the server is there and accepts our token; starts no process."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                answer = await self._client.get("/health")
            raise_for_status(answer.status_code, answer.content)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, MessageError) as error:
            found = str(error) or f"no answer within {HEALTH_SECONDS:g} seconds"
            raise Infrastructure(
                f"the encoder at {self._address} cannot be reached ({found}). Check that it runs, and that "
                "NML_ENCODER_ADDRESS is right"
            ) from error
        except Infrastructure as error:
            raise Infrastructure(f"the encoder at {self._address} refuses the connection: {error}") from error

    async def close(self) -> None:
        await self._client.aclose()


def _check(arrays: Arrays, expected: tuple[str, ...]) -> None:
    """Raises MessageError unless the arrays are there: the server may be of another version."""
    if missing := set(expected) - arrays.keys():
        raise MessageError(f"without {', '.join(sorted(missing))}")
    if "vectors" in expected and (arrays["vectors"].dtype != np.float32 or arrays["vectors"].ndim != 2):
        raise MessageError("vectors that are not a float32 matrix")
