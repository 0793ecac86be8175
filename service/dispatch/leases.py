"""Renews the leases of a dispatcher and touches the heartbeats of its jobs, however long the loop takes.

A thread does it beside the loop. Fencing still holds: a process that is stopped or a machine that sleeps stops the
thread too, and after `hang_seconds` without progress of the loop the thread stops renewing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from service.store import Store
from service.store.claims import Lease
from service.store.errors import Unavailable

JOIN_SECONDS = 10.0  # a renewal after that does no harm: it delays a takeover by one lease
log = logging.getLogger("service.dispatch")


class LeaseWatch:
    """For how long the leases of others have not been renewed, by a clock that nobody sets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[str, tuple[Lease, float]] = {}  # by job: the lease, and when we saw it first

    def unchanged_for(self, leases: Mapping[str, Lease]) -> dict[str, float]:
        """Seconds since each of them was first seen as it is. Those that are not given are forgotten."""
        now, before = self._clock(), self._seen
        self._seen = {
            job_id: before[job_id] if job_id in before and before[job_id][0] == lease else (lease, now)
            for job_id, lease in leases.items()
        }
        return {job_id: now - since for job_id, (_, since) in self._seen.items()}


class Leases:
    """All leases of one owner. Safe to use from several threads.

    Args:
        seconds: of a lease; it is renewed after a third of that, half at the latest.
        beat: called after each renewal, possibly from the thread, to touch the heartbeats.
        hang_seconds: without a call to `note_progress`, after which the thread stops renewing.
    """

    def __init__(self, store: Store, owner: str, *, seconds: float, beat: Callable[[], None], hang_seconds: float):
        self._store, self._owner, self._seconds, self._beat = store, owner, seconds, beat
        self._hang_seconds = hang_seconds
        self._renewed = float("-inf")
        self._progressed = time.monotonic()
        self._busy = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def note_progress(self) -> None:
        """The loop is not hanging."""
        self._progressed = time.monotonic()

    def renew(self) -> None:
        """Renew all leases with one statement, if it is time and no other thread is doing so.

        Raises:
            Unavailable: the database does not answer.
        """
        if not self._busy.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self._renewed >= self._seconds / 3:
                self._store.claims.renew_all(self._owner, self._seconds)
                self._renewed = time.monotonic()
                self._beat()
        finally:
            self._busy.release()

    def start(self) -> None:
        """Renew from a thread until `stop`."""
        self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. May be called twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
            self._thread = None

    def _keep(self) -> None:
        has_warned = False
        while not self._stop.wait(self._seconds / 6):
            if time.monotonic() - self._progressed > self._hang_seconds:
                if not has_warned:
                    log.error(
                        "the dispatcher hangs; its leases are no longer renewed, so that another can take its jobs over"
                    )
                has_warned = True
                continue
            has_warned = False
            try:
                self.renew()
            except Unavailable:  # the loop logs it
                continue
            except Exception:
                log.exception("cannot renew leases")
