"""Keeps what a dispatcher holds, however long it takes to look at one job: leases in the database, heartbeats on disk.

A thread does it beside the loop. Fencing does not suffer: a process that is stopped or a machine that sleeps takes the
thread with it, and a loop that hangs for good is given up after `patience`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from service.store import Store
from service.store.errors import Unavailable

JOIN_SECONDS = 10.0  # a renewal that comes later does no harm: it delays a takeover by one lease
log = logging.getLogger("service.dispatch")


class Leases:
    """All leases of one owner. Safe to use from several threads.

    Args:
        seconds: of a lease; it is renewed when a third of that is over, half at the latest.
        touch: called after each renewal, to touch the heartbeats; may be called from the thread.
        patience: seconds without `working` after which the thread renews no more.
    """

    def __init__(self, store: Store, owner: str, *, seconds: float, touch: Callable[[], None], patience: float):
        self._store, self._owner, self._seconds, self._touch = store, owner, seconds, touch
        self._patience = patience
        self._renewed = float("-inf")
        self._worked = time.monotonic()
        self._busy = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def working(self) -> None:
        """The loop gets on."""
        self._worked = time.monotonic()

    def renew(self) -> None:
        """Renew all, with one statement, if it is time and nobody is about it.

        Raises:
            Unavailable: the database does not answer.
        """
        if not self._busy.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self._renewed >= self._seconds / 3:
                self._store.claims.renew_all(self._owner, self._seconds)
                self._renewed = time.monotonic()
                self._touch()
        finally:
            self._busy.release()

    def start(self) -> None:
        """Renew from a thread until `stop`."""
        self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more from the thread. May be called twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
            self._thread = None

    def _keep(self) -> None:
        has_warned = False
        while not self._stop.wait(self._seconds / 6):
            if time.monotonic() - self._worked > self._patience:
                if not has_warned:
                    log.error("the dispatcher hangs; its jobs are left to others")
                has_warned = True
                continue
            has_warned = False
            try:
                self.renew()
            except Unavailable:  # the loop says so
                continue
            except Exception:
                log.exception("leases cannot be renewed")
