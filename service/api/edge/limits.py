"""How much one client may ask: requests per second, and bytes of a request."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import Message, Receive

from service.api.problems import Problem

LOOKUP_BYTES = 2_000_000  # 200 for each of 10,000 ids
QUESTION_BYTES = 8_000_000  # as JSON, which is read in one go while everyone else waits; binary forms may have more
_REMEMBERED = 10_000  # clients; who was silent longest is forgotten first, and starts with a full bucket


class Buckets:
    """A token bucket per client: `burst` requests at once, then `rate` per second. Per process."""

    def __init__(self, rate: float, burst: float, *, clock: Callable[[], float] = time.monotonic):
        self._rate, self._burst, self._clock = rate, burst, clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def take(self, client: str) -> float:
        """Use up one token; returns 0, or how many seconds to wait until there is one."""
        now = self._clock()
        tokens, at = self._levels.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        allowed = tokens >= 1
        self._levels[client] = (tokens - allowed, now)
        self._levels.move_to_end(client)
        if len(self._levels) > _REMEMBERED:
            self._levels.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / self._rate


def too_large(limit: int, remedy: str = "") -> Problem:
    # What is left of the body would be read as the next request, so the connection ends with this one.
    return Problem(413, f"the request's body has more than {limit:,} bytes{remedy}", headers={"Connection": "close"})


def question_bytes(question: str, most: int) -> int:
    """Bytes that the body of a question may have, within `most`; neighbours may be asked for in binary form."""
    limits = {"lookup": LOOKUP_BYTES, "neighbors": most}
    return min(limits.get(question, QUESTION_BYTES), most)


def check_announced(length: bytes | None, limit: int) -> None:
    """Refuse by the Content-Length alone, before a byte of the body is read.

    Raises:
        Problem: 413, or 400 if it is no number.
    """
    if length is None:
        return
    if not length.isdigit() or len(length) > 18:
        raise Problem(400, "Content-Length is not a number of bytes", headers={"Connection": "close"})
    if int(length) > limit:
        raise too_large(limit)


def capped(receive: Receive, limit: int) -> Receive:
    """The same body, which ends in Problem 413 as soon as it exceeds `limit` bytes."""
    left = limit

    async def counted() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise too_large(limit)
        return message

    return counted
