"""The loop that claims jobs, has them run, and sees each of them to its end (design section 5).

Several dispatchers may run at once, on one machine or many. Each holds its jobs by leases in the database; one that
dies or stalls loses them to another, which goes on with the very same process. What a dispatcher knows is in the
database and in files: it may be killed at any moment, and the next one takes up the thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from service.datasets.uploads import sweep_uploads
from service.dispatch.care import Care, Household, adopted, claimed
from service.dispatch.descendants import started
from service.dispatch.orders import Orders
from service.dispatch.runner import Runner
from service.settings import Settings
from service.store import Store
from service.store.errors import Fenced, Unavailable
from service.store.records import Claim, Job, Kind

TRAINING: tuple[Kind, ...] = ("train", "sweep")
IMPORTS: tuple[Kind, ...] = ("import",)
FORCED_SECONDS = 15.0  # beyond the grace, for processes that are killed to be gone
PATIENCE = 10  # unexpected errors in a row over one job
SWEEP_SECONDS = 3_600.0  # between looks for uploads that nobody needs
log = logging.getLogger("service.dispatch")


class Dispatcher:
    """One dispatcher; `run` it in the main thread of a process of its own.

    Args:
        runner: where jobs run.
        orders: the commands; tests have others than the real ones.
        owner: by which leases are known; a new one for every process.
    """

    def __init__(
        self, settings: Settings, store: Store, runner: Runner, *, orders: Orders | None = None,
        owner: str | None = None, clock: Callable[[], float] = time.time,
    ):  # fmt: skip
        self._settings, self._store, self._runner = settings, store, runner
        self._house = Household(settings, store, runner, orders or Orders(settings), clock)
        self.host = platform.node()
        self.owner = owner or f"{self.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"[-128:]
        self.cares: dict[str, Care] = {}
        self._troubles: dict[str, tuple[int, float]] = {}  # job -> unexpected errors in a row, when to try again
        self._closing: list[subprocess.Popen[bytes]] = []  # processes that tell MLflow
        self._beaten = self._swept = float("-inf")
        self._is_cut_off = False

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, then leave everything so that it can go on later."""
        log.info("dispatcher %s: %d jobs at a time", self.owner, self._settings.slots)
        while not stop.is_set():
            self.step()
            stop.wait(self._settings.poll_seconds)
        self.wind_down()

    def step(self) -> None:
        """Look at everything once. Raises nothing: what cannot be done now is done at the next step."""
        self._press()
        with self._database():
            self._beat()
            self._take_stock()
            for care in list(self.cares.values()):
                self._attend(care)
            self._fill(TRAINING, self._settings.slots)
            self._fill(IMPORTS, self._settings.import_concurrency)
        self._reap()

    def wind_down(self) -> None:
        """End what would not outlive us, gently, and queue it again; let go of the rest."""
        deadline = time.monotonic() + self._settings.stop_grace_seconds + FORCED_SECONDS
        if not self._runner.outlives_service:
            for care in self.cares.values():
                care.stopping = True
            while self.cares and time.monotonic() < deadline:
                self._press()
                with self._database():
                    for care in list(self.cares.values()):
                        self._attend(care)
                self._reap()
                time.sleep(min(self._settings.poll_seconds, 0.1))
        with self._database():
            for care in list(self.cares.values()):
                care.release()
                self._drop(care)
            self._store.dispatchers.remove(self.owner)
        self._runner.close()

    # Steps

    def _press(self) -> None:
        for care in self.cares.values():
            try:
                care.press()
            except Exception:
                log.exception("job %s: cannot be stopped", care.job.id)

    def _beat(self) -> None:
        """Tell that we are alive, and look what others have left behind, now and then."""
        now = time.monotonic()
        if now - self._beaten < self._settings.lease_seconds / 3:
            return
        if self._beaten == float("-inf"):
            self._release_the_dead()
        jobs = sum(care.job.kind in TRAINING for care in self.cares.values())
        info: dict[str, Any] = {"slots": self._settings.slots, "jobs": jobs, "runner": self._settings.runner}
        self._store.dispatchers.beat(self.owner, host=self.host, pid=os.getpid(), info=info | _identity())
        self._beaten = now
        foreign_after = self._settings.leash_seconds + self._settings.stop_grace_seconds + FORCED_SECONDS
        for job in self._store.claims.take_over(
            self.owner, lease_seconds=self._settings.lease_seconds, host=self.host, foreign_after=foreign_after
        ):
            log.info("job %s, attempt %d: taken over from %s", job.id, job.attempt, job.runner)
            self._keep(job, adopted)
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            with contextlib.suppress(OSError):
                sweep_uploads(self._settings, self._store)

    def _release_the_dead(self) -> None:
        """Do not wait for the leases of a dispatcher that was killed on this machine: it is certain that it is dead."""
        for other in self._store.dispatchers.alive(10 * self._settings.lease_seconds):
            known = {name: other.info.get(name) for name in ("boot", "namespace")}
            ours = _identity()
            if other.host != self.host or any(value != ours[name] for name, value in known.items()):
                continue
            if started(other.pid) == other.info.get("started"):
                continue
            for job in self._store.claims.held(other.id):
                with contextlib.suppress(Fenced):
                    self._store.claims.release(Claim.on(job))
            self._store.dispatchers.remove(other.id)

    def _take_stock(self) -> None:
        """What we hold, as the store sees it: a wish to cancel shows here, and what we lost, or did not know we had."""
        held = {job.id: job for job in self._store.claims.held(self.owner)}
        for care in list(self.cares.values()):
            job = held.pop(care.job.id, None)
            if job is not None and job.attempt == care.claim.attempt:
                care.see(job)
            else:
                self._lose(care)
        for job in held.values():
            self._keep(job, adopted)

    def _fill(self, kinds: Sequence[Kind], places: int) -> None:
        """Claim and start while there are places, and memory."""
        while sum(care.job.kind in kinds for care in self.cares.values()) < places:
            used = sum(care.job.memory_bytes or 0 for care in self.cares.values())
            # With nothing beside it, even a job that was planned for a larger machine gets its chance. A cluster knows
            # by itself what fits.
            counts = self.cares and self._settings.runner == "local"
            free = self._settings.memory_bytes - used if counts else None
            lease = self._settings.lease_seconds
            job = self._store.claims.claim(self.owner, kinds=kinds, lease_seconds=lease, free_memory=free)
            if job is None:
                return
            log.info("job %s, attempt %d: claimed", job.id, job.attempt)
            self._keep(job, claimed)
            if job.id in self.cares:
                self._attend(self.cares[job.id])

    def _keep(self, job: Job, make: Callable[[Household, Job], Care]) -> None:
        try:
            self.cares[job.id] = make(self._house, job)
        except Exception as error:  # a job of which not even an order can be made
            log.exception("job %s: no order can be made", job.id)
            message = f"the dispatcher cannot handle this job ({type(error).__name__}: {error})"
            with contextlib.suppress(Fenced):
                self._store.claims.finish(Claim.on(job), "failed", failure_kind="infra", failure_message=message)

    def _attend(self, care: Care) -> None:
        """Do what is due for one job; its troubles stay its own."""
        errors, not_before = self._troubles.get(care.job.id, (0, 0.0))
        if time.monotonic() < not_before:
            return
        try:
            is_over = care.tick()
        except Unavailable:
            raise
        except Fenced:
            self._lose(care)
        except Exception as error:
            log.exception("job %s: unexpected", care.job.id)
            self._troubles[care.job.id] = (errors + 1, time.monotonic() + min(0.5 * 2**errors, 30.0))
            if errors + 1 >= PATIENCE:
                with contextlib.suppress(Fenced):
                    care.give_up(error)
                self._drop(care)
        else:
            self._troubles.pop(care.job.id, None)
            if is_over:
                self._drop(care)

    def _lose(self, care: Care) -> None:
        log.warning("job %s, attempt %d: another dispatcher has it now", care.job.id, care.claim.attempt)
        care.abandon()
        self._drop(care)

    def _drop(self, care: Care) -> None:
        care.close()
        self._closing += care.closing
        self.cares.pop(care.job.id, None)
        self._troubles.pop(care.job.id, None)

    def _reap(self) -> None:
        self._closing = [process for process in self._closing if process.poll() is None]

    @contextlib.contextmanager
    def _database(self) -> Iterator[None]:
        """What needs the database; while it is away, trainers go on, and so do we as soon as it is back."""
        try:
            yield
        except Unavailable as error:
            if not self._is_cut_off:
                log.warning("the database is away, jobs go on: %s", error)
            self._is_cut_off = True
        except Exception:
            log.exception("unexpected")
        else:
            if self._is_cut_off:
                log.info("the database is back")
            self._is_cut_off = False


def _identity() -> dict[str, Any]:
    """What tells for certain whether a process of this number is the same: boot, namespace, moment of its start."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = namespace = uuid.uuid4().hex  # unknown: equal to no other
    return {"boot": boot, "namespace": namespace, "started": started(os.getpid())}
