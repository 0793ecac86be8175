"""Reads a JSON body and checks its type, size (the guard counts), syntax, depth, and for values JSON does not have."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import Request
from pydantic_core import from_json

from service.api.edge.limits import too_large
from service.api.problems import MAX_ERRORS, FieldError, Problem, clean, not_valid
from service.api.threads import in_thread

Trail = Any  # (trail of what it is in, key or position), () for the whole: joined to a path only if it is needed

JSON = "application/json"
MOST_VALUES = 100_000  # in a body; a large sweep has a few thousand
MOST_KEYS = 1_000  # of an object; the largest of ours, the space of a sweep, has about a hundred
_SMALL = 20_000  # bytes; what is read in a millisecond need not go to a thread
BODY_SECONDS = 30.0  # for the whole body; a million bytes take far less on any line that is alive


async def read_document(request: Request) -> dict[str, Any]:
    """The JSON object that a request carries.

    Raises:
        Problem: 415 another type, 413 too large, 408 too slow, 400 no JSON, 422 no object, or NaN or NUL in it.
    """
    media_type(request, (JSON,))
    text = await read_bytes(request)
    return parse_document(text) if len(text) <= _SMALL else await in_thread(parse_document, text)


async def read_bytes(
    request: Request, *, seconds: float = BODY_SECONDS, most: int | None = None, remedy: str = ""
) -> bytes:
    """The whole body.

    Args:
        most: bytes that it may have, where that is fewer than the guard lets through; `remedy`: what to do then.

    Raises:
        Problem: 413 too large, 408 too slow.
    """
    pieces = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                pieces += piece
                if most is not None and len(pieces) > most:
                    raise too_large(most, remedy)
    except TimeoutError:
        slow = f"the body was not complete after {seconds:g} s"
        raise Problem(408, slow, headers={"Connection": "close"}) from None
    return bytes(pieces)


def parse_document(text: bytes) -> dict[str, Any]:
    """The object in a JSON text. Of a key that is there twice, the last holds.

    Raises:
        Problem: 400 no JSON (also: nested too deeply, half of a surrogate pair), 422 no object, or NaN or NUL in it.
    """
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:  # counted quickly; parsing them would hold the GIL
        raise not_valid([FieldError("body", f"contains more than {MOST_VALUES:,} values; no spec needs as many")])
    try:
        # NaN is let through here so that the refusal below can name its field
        document = from_json(text, allow_inf_nan=True, cache_strings="keys")
    except (ValueError, RecursionError) as error:
        what = "the body is empty" if not text.strip() else f"the body is not JSON: {clean(str(error), 200)}"
        raise Problem(400, what, errors=[FieldError("body", what)]) from None
    if not isinstance(document, dict):
        raise not_valid([FieldError("body", "should be a JSON object")])
    if found := list(itertools.islice(_unusable(document), MAX_ERRORS)):
        raise not_valid(found)
    return document


def media_type(request: Request, taken: Sequence[str]) -> str:
    """Which of these types the body has; JSON may have a name of its own (application/…+json).

    Raises:
        Problem: 415, another one, or it is compressed.
    """
    given = request.headers.get("content-type", "")
    kind, _, parameters = given.partition(";")
    kind, parameters = kind.strip().lower(), parameters.replace(" ", "").replace('"', "").lower()
    kind = JSON if kind.startswith("application/") and kind.endswith("+json") else kind
    if kind not in taken or (kind == JSON and parameters not in ("", "charset=utf-8")):
        others = "".join(f", or {other}" for other in taken if other != JSON)
        raise Problem(415, f"send JSON in UTF-8, with Content-Type: {JSON}{others}")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(415, "send the body as it is, without Content-Encoding", headers={"Accept-Encoding": "identity"})
    return kind


def _unusable(document: dict[str, Any]) -> Iterator[FieldError]:
    """What no JSON standard and no database takes: NaN, infinities, and the character NUL.

    Raises:
        Problem: 422, there is more in it, or in one object of it, than any spec has.
    """
    pending: deque[tuple[Trail, Any]] = deque([((), document)])
    for count in itertools.count():
        if not pending:
            return
        if count > MOST_VALUES:
            raise not_valid([FieldError("body", f"contains more than {MOST_VALUES:,} values; no spec needs as many")])
        trail, value = pending.popleft()
        if isinstance(value, dict):
            if len(value) > MOST_KEYS:  # before validation, which would make an error of each
                raise not_valid([FieldError(_path(trail), f"has {len(value):,} keys; no spec has over {MOST_KEYS:,}")])
            if any("\0" in key for key in value):
                yield FieldError(_path(trail), "a key contains a NUL character; remove it")
            pending.extend(((trail, key), item) for key, item in value.items())
        elif isinstance(value, list):
            pending.extend(((trail, at), item) for at, item in enumerate(value))
        elif isinstance(value, str):
            if "\0" in value:
                yield FieldError(_path(trail), "contains a NUL character; remove it")
        elif isinstance(value, float) and not math.isfinite(value):
            yield FieldError(_path(trail), "should be a finite number")


def _path(trail: Trail) -> str:
    parts: list[str] = []
    while trail:
        trail, part = trail
        parts.append(str(part))
    return ".".join(reversed(parts)) or "body"
