"""Questions to an encoder server and its answers, as they travel: HTTP with .npz bodies; nothing is ever unpickled.

POST /{embed|classify}?version=V&seconds=S&idle_seconds=I     body and answer: `pack`; an empty body: open V, no more
GET  /health                                                  200 if the token is right
what fails     {"detail": message} with status 401, 422 (InvalidInput), 503 (Infrastructure) or 504 (TimeoutError)
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx
import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from trainer.errors import Infrastructure, InvalidInput, TrainerError

MAX_QUESTION_BYTES = 1 << 30
MAX_ANSWER_BYTES = 4 << 30  # a class and a confidence for 250 million nodes
OUT_OF_MEMORY = "memory ran out. Send fewer nodes or labels at a time, or give the encoder more memory."

log = logging.getLogger("service.encoder")

Arrays = Mapping[str, NDArray[Any]]


class Question(NamedTuple):
    """What is asked of a published version."""

    version: str
    operation: str  # embed or classify
    message: bytes  # see `pack`; empty: load what the operation needs of the version, and compute nothing
    seconds: float  # longest time for the computation, once the version is open
    idle_seconds: float  # how long the process is kept after the answer


class MessageError(Exception):
    """Not a message of this version of the encoder server."""


def pack(document: Mapping[str, Any], arrays: Arrays) -> bytes:
    """An .npz file with the arrays, and the JSON text of `document` under that name.

    Raises:
        InvalidInput: it cannot be sent: values that JSON does not have, arrays of objects, too many bytes.
    """
    file = io.BytesIO()
    try:
        text = np.array(json.dumps(dict(document), allow_nan=False))
        np.savez(file, allow_pickle=False, document=text, **arrays)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"this cannot be sent to the encoder: {error}") from error
    if file.tell() > MAX_ANSWER_BYTES:
        raise InvalidInput(f"{file.tell():,} bytes cannot be sent at a time. Ask for less.")
    return file.getvalue()


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The document and the arrays.

    Raises:
        MessageError: `pack` has not made it.
    """
    try:
        with NpzFile(io.BytesIO(message), allow_pickle=False) as file:
            assert file.zip is not None
            if sum(member.file_size for member in file.zip.infolist()) > MAX_ANSWER_BYTES:
                raise ValueError("it is too large")
            arrays = dict(file.items())
        document = json.loads(arrays.pop("document").item())
        if not isinstance(document, dict) or not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("it holds something else")
    except MemoryError:
        raise
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds
        raise MessageError(f"not a message of the encoder ({error})") from error
    return document, arrays


def describe(error: Exception) -> tuple[int, str]:
    """The status and the sentence with which a server answers; `ask` raises the same again."""
    if isinstance(error, InvalidInput):
        return 422, str(error)
    if isinstance(error, TrainerError):
        return 503, str(error)
    if isinstance(error, TimeoutError):
        return 504, str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's own is a RuntimeError
        return 503, OUT_OF_MEMORY
    log.error("unexpected: %s", error, exc_info=error)
    return 503, f"this could not be computed ({type(error).__name__})"


async def ask(client: httpx.AsyncClient, question: Question) -> bytes:
    """What the server answers.

    Raises:
        InvalidInput, Infrastructure, TimeoutError: what the server raised.
        MessageError, httpx.HTTPError: the answer is not an encoder's, or the connection broke.
    """
    parts, size = [], 0
    params: dict[str, str | float] = {
        "version": question.version,
        "seconds": question.seconds,
        "idle_seconds": question.idle_seconds,
    }
    async with client.stream("POST", f"/{question.operation}", params=params, content=question.message) as response:
        async for part in response.aiter_raw():
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise MessageError("the answer is too large")
            parts.append(part)
    answer = b"".join(parts)
    raise_for_status(response.status_code, answer)
    return answer


def raise_for_status(status: int, content: bytes) -> None:
    """Raise again what `describe` described."""
    if status == 200:
        return
    try:
        detail = json.loads(content)["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = None
    kinds: dict[int, type[Exception]] = {401: Infrastructure, 422: InvalidInput, 503: Infrastructure, 504: TimeoutError}
    if status not in kinds or not isinstance(detail, str):
        raise MessageError(f"status {status}")
    raise kinds[status](detail)
