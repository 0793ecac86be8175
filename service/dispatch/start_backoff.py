"""When a dispatcher claims nothing: for a while after a start that failed, and while the disk is nearly full.

What keeps one job from starting (no room, no more processes, a token that Ray does not take) mostly keeps all of them.
Without a pause the whole queue would be claimed and given back, one job after the other, within seconds.
"""

from __future__ import annotations

import logging
import shutil
import time

from service.settings import Settings

LEAST_SECONDS = 0.1
log = logging.getLogger("service.dispatch")


class StartBackoff:
    """One for each dispatcher. The pause doubles with every failure, and is forgotten with a start that works."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._least = max(settings.retry_seconds, LEAST_SECONDS)
        self._next = self._least  # seconds
        self._until = float("-inf")
        self._was_full = False

    def failed(self) -> float:
        """A start has failed. Returns for how many seconds nothing is claimed."""
        pause = min(self._next, max(self._settings.retry_seconds_max, LEAST_SECONDS))
        self._next, self._until = 2 * pause, time.monotonic() + pause
        return pause

    def worked(self) -> None:
        """A start has worked."""
        self._next, self._until = self._least, float("-inf")

    def holds(self) -> bool:
        """Whether nothing should be claimed now."""
        return time.monotonic() < self._until or self._is_full()

    def _is_full(self) -> bool:
        try:
            free = shutil.disk_usage(self._settings.home).free
        except OSError:
            return False  # not there yet; if it cannot be made, the start says so
        is_full = free < self._settings.min_free_bytes
        if is_full and not self._was_full:
            least = self._settings.min_free_bytes
            log.warning("no job is started: %d bytes are free in %s, less than %d", free, self._settings.home, least)
        self._was_full = is_full
        return is_full
