"""A bounded pool of threads for what computes for a while: a few at a time, a limited queue, 503 beyond it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from service.api.problems import unavailable

MOST_WAITING = 64

P = ParamSpec("P")
T = TypeVar("T")


class BoundedPool:
    """Runs calls in threads. numpy and FAISS compute without the GIL, so the event loop goes on meanwhile."""

    def __init__(self, at_a_time: int, *, most_waiting: int = MOST_WAITING):
        self._limiter = anyio.CapacityLimiter(at_a_time)
        self._most, self._inside = at_a_time + most_waiting, 0

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """The call's result.

        Raises:
            Problem: 503, too many wait already.
        """
        if self._inside >= self._most:
            raise unavailable("too many such requests are waiting; try again in a moment")
        self._inside += 1  # by hand: the limiter counts those who wait only a moment later
        try:
            return await anyio.to_thread.run_sync(partial(call, *arguments, **options), limiter=self._limiter)
        finally:
            self._inside -= 1
