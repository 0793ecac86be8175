"""How much one client may ask: requests per second, bytes of a request, and of all requests at a time."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from starlette.types import Message, Receive

from service.api.problems import Problem

LOOKUP_BYTES = 2_000_000  # 200 for each of 10,000 ids
QUESTION_BYTES = 8_000_000  # as JSON, which is read in one go while everyone else waits; binary forms may have more
UNCOUNTED_BYTES = 65_536  # of a body; whatever else is going on, short requests are read
HELD_BYTES = 256_000_000  # of the longer bodies that a process holds at a time
HELD_BYTES_PER_KEY = 64_000_000
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


class BodiesHeld:
    """Bytes of request bodies in memory, per process: a request keeps what it has read until it is answered.

    One body alone may be of any size that a request may have. Without keys there is nobody to share with.
    """

    def __init__(self, most: int = HELD_BYTES, most_per_key: int = HELD_BYTES_PER_KEY):
        self._most, self._most_per_key = most, most_per_key
        self.bytes, self._of_key = 0, Counter[str]()

    def count(self, owner: str | None, before: int, size: int) -> None:
        """A body of this key (its id; none: no key) has grown to `size` bytes.

        Raises:
            Problem: 429, the key holds too much; 503, all of them do.
        """
        others, of_key = self.bytes - before, 0 if owner is None else self._of_key[owner] - before
        if of_key and of_key + size > self._most_per_key:
            raise Problem(
                429, f"requests of this key hold more than {self._most_per_key:,} bytes; wait for answers",
                headers={"Retry-After": "2", "Connection": "close"}, kind="quota",
            )  # fmt: skip
        if others and others + size > self._most:
            raise Problem(
                503, "too many long requests are being read; try again in a moment",
                headers={"Retry-After": "2", "Connection": "close"}, kind="unavailable",
            )  # fmt: skip
        self._add(owner, size - before)

    def release(self, owner: str | None, size: int) -> None:
        self._add(owner, -size)

    def _add(self, owner: str | None, size: int) -> None:
        self.bytes += size
        if owner is not None:
            self._of_key[owner] += size
            if not self._of_key[owner]:
                del self._of_key[owner]


class Body:
    """The body of one request, as it is read."""

    def __init__(self, receive: Receive, together: BodiesHeld, owner: str | None):
        self._receive, self._together, self._owner = receive, together, owner
        self._size = self._counted = 0

    async def receive(self) -> Message:
        """The next message; counted before anybody keeps it."""
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > max(UNCOUNTED_BYTES, self._counted):
            self._together.count(self._owner, self._counted, self._size)
            self._counted = self._size
        return message

    def release(self) -> None:
        """The request is over."""
        if self._counted:
            self._together.release(self._owner, self._counted)


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
