"""Pauses claiming: for a while after a start that failed, and while the disk is nearly full.

What keeps one job from starting (a full disk, no more processes, a token that Ray refuses) mostly keeps all of them.
Without a pause the whole queue would be claimed and put back within seconds.
"""

from __future__ import annotations

import logging
import shutil
import time

from service.settings import Settings

LEAST_SECONDS = 0.1
log = logging.getLogger("service.dispatch")


class StartBackoff:
    """One for each dispatcher. The pause doubles with every failure, and is reset by a start that succeeds."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._least = max(settings.retry_seconds, LEAST_SECONDS)
        self._next = self._least  # seconds
        self._until = float("-inf")
        self._was_full = False

    def failed(self) -> float:
        """Note a start that failed. Returns for how many seconds nothing is claimed."""
        pause = min(self._next, max(self._settings.retry_seconds_max, LEAST_SECONDS))
        self._next, self._until = 2 * pause, time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """Note a start that succeeded."""
        self._next, self._until = self._least, float("-inf")

    def is_active(self) -> bool:
        """Whether nothing may be claimed now."""
        return time.monotonic() < self._until or self._is_full()

    def _is_full(self) -> bool:
        try:
            free = shutil.disk_usage(self._settings.home).free
        except OSError:
            return False  # not there yet; if it cannot be created, the start fails and says so
        is_full = free < self._settings.min_free_bytes
        if is_full and not self._was_full:
            least = self._settings.min_free_bytes
            log.warning("starting no jobs: %d bytes are free in %s, less than %d", free, self._settings.home, least)
        self._was_full = is_full
        return is_full
