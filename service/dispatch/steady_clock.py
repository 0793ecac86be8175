"""Wall-clock time that ignores jumps: somebody sets the clock, or it is corrected by hours after the start.

Deadlines and ages are compared with wall-clock times that were stored earlier. If the clock jumps ahead, every deadline
seems to have passed and everything to be old enough to be deleted. So within a process time goes on by the monotonic
clock. What the wall clock says instead is believed once it has said so for a day.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

JUMP_SECONDS = 30.0  # NTP's own steps, and what a loaded machine does, are smaller
BELIEVED_SECONDS = 86_400.0
log = logging.getLogger("service.dispatch")


class SteadyClock:
    """Calling it gives seconds since 1970. For one thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic):
        self._wall, self._monotonic = wall, monotonic
        self._offset = wall() - monotonic()  # from monotonic to what we take for true
        self._jumped: float | None = None  # when the wall clock left us, by the monotonic clock

    def __call__(self) -> float:
        monotonic = self._monotonic()
        offset = self._wall() - monotonic
        if abs(offset - self._offset) <= JUMP_SECONDS:  # slow corrections are followed
            self._offset, self._jumped = offset, None
        elif self._jumped is None:
            self._jumped = monotonic
            log.warning(
                "the clock jumped by %+.0f s; deadlines and ages are counted as before for a day",
                offset - self._offset,
            )
        elif monotonic - self._jumped > BELIEVED_SECONDS:
            self._offset, self._jumped = offset, None
        return monotonic + self._offset
