"""Whether what is submitted now would run: the database answers, a dispatcher is alive, the disk has room."""

from __future__ import annotations

import shutil
import time

import anyio
import anyio.to_thread

from service.settings import Settings
from service.store import Store
from service.store.errors import Damaged, Unavailable
from trainer.planning.plan import size

_PATIENCE = 5.0  # seconds for all checks together
_KEPT_SECONDS = 1.0  # anyone may ask, so an answer holds for a while


class Readiness:
    """Of one app."""

    def __init__(self, store: Store, settings: Settings):
        self._store, self._settings = store, settings
        self._found: list[str] = []
        self._until = 0.0
        self._looking = anyio.Lock()
        self._free: int | None = None
        self._free_until = 0.0

    def free_bytes(self) -> int | None:
        """What the disk has left; none: it cannot be read. May wait for the disk."""
        if time.monotonic() >= self._free_until:
            self._free_until = time.monotonic() + _KEPT_SECONDS
            self._free = _free_bytes(self._settings)
        return self._free

    def has_room(self) -> bool:
        """Whether the disk has what a job needs to leave its results. May wait for the disk."""
        free = self.free_bytes()
        return free is None or free >= self._settings.min_free_bytes

    async def reasons(self) -> list[str]:
        """Why the service is not ready, one sentence each; empty if it is."""
        async with self._looking:  # who comes meanwhile waits for what is found
            if time.monotonic() >= self._until:
                with anyio.move_on_after(_PATIENCE) as patience:
                    self._found = await anyio.to_thread.run_sync(self._look, abandon_on_cancel=True)
                if patience.cancelled_caught:
                    self._found = ["the database or the disk does not answer"]
                self._until = time.monotonic() + _KEPT_SECONDS
            return self._found

    def _look(self) -> list[str]:
        found = []
        try:
            if not self._store.dispatchers.alive(self._settings.lease_seconds):
                found.append("no dispatcher is running, so jobs would wait")
        except Damaged as error:
            found.append(f"the database is damaged ({error}); a backup must be restored")
        except Unavailable:
            found.append("the database cannot be reached")
        free = _free_bytes(self._settings)
        if free is None or free < self._settings.min_free_bytes:
            left = "cannot be read" if free is None else f"has {size(free)} left"
            found.append(f"the disk {left}; {size(self._settings.min_free_bytes)} are needed")
        return found


def _free_bytes(settings: Settings) -> int | None:
    try:
        return shutil.disk_usage(settings.home).free
    except OSError:
        return None
