"""A bounded pool of threads for what computes for a while: a few at a time, a limited queue, 503 beyond it.

Once half of the places are taken, a key may have no more than a quarter of them, or it would keep everybody else
waiting; beyond that it is refused with 429.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from service.api.shares import Shares

MOST_WAITING = 64

P = ParamSpec("P")
T = TypeVar("T")


class BoundedPool:
    """Runs calls in threads. numpy and FAISS compute without the GIL, so the event loop goes on meanwhile."""

    def __init__(self, at_a_time: int, *, most_waiting: int = MOST_WAITING):
        self._limiter = anyio.CapacityLimiter(at_a_time)
        most = at_a_time + most_waiting
        self._places = Shares(most, max(1, most // 4), too_many="too many such requests{} are waiting", seconds=2)

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """The call's result.

        Raises:
            Problem: 503, too many wait already; 429, of this key.
        """
        with self._places.take():  # at once: the limiter counts those who wait only a moment later
            return await anyio.to_thread.run_sync(partial(call, *arguments, **options), limiter=self._limiter)
