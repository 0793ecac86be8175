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
import random
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from service.datasets.uploads import sweep_uploads
from service.discarded import sweep_discarded
from service.dispatch.attempt import Context, JobAttempt, adopted, claimed
from service.dispatch.host_id import host_id, is_of_another_boot
from service.dispatch.job_commands import JobCommands
from service.dispatch.leases import Leases
from service.dispatch.procfs import started
from service.dispatch.runner import Runner
from service.dispatch.start_backoff import StartBackoff
from service.dispatch.tracking import close_in_mlflow, is_left_open
from service.embeddings.jobs import reconcile
from service.embeddings.retention import sweep_versions
from service.settings import Settings
from service.store import Store
from service.store.errors import Fenced, Unavailable
from service.store.records import Claim, DispatcherRecord, Job, Kind
from trainer.process.stop_signals import StopRequest

TRAINING: tuple[Kind, ...] = ("train", "sweep")
PUBLISHING: tuple[Kind, ...] = ("publish", "index")
IMPORTS: tuple[Kind, ...] = ("import",)
FORCED_SECONDS = 15.0  # beyond the grace, for processes that are killed to be gone
PATIENCE = 10  # unexpected errors in a row over one job
SWEEP_SECONDS = 3_600.0  # between looks for files that nobody needs
RESWEEP_SECONDS = 60.0  # after one that failed
DAY_SECONDS = 86_400.0
CLOSED_AT_ONCE = 4  # runs in MLflow: a process each
log = logging.getLogger("service.dispatch")


class Dispatcher:
    """One dispatcher; `run` it in the main thread of a process of its own.

    Args:
        runner: where jobs run.
        commands: what each job runs; tests have others than the real ones.
        owner: by which leases are known; a new one for every process.
    """

    def __init__(
        self, settings: Settings, store: Store, runner: Runner, *, commands: JobCommands | None = None,
        owner: str | None = None, clock: Callable[[], float] = time.time,
    ):  # fmt: skip
        self._settings, self._store, self._runner = settings, store, runner
        self._context = Context(
            settings, store, runner, commands or JobCommands(settings), StartBackoff(settings), clock
        )
        self.host = host_id()
        self.owner = owner or f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"[-128:]
        self.attempts: dict[str, JobAttempt] = {}
        self._troubles: dict[str, tuple[int, float]] = {}  # job -> unexpected errors in a row, when to try again
        self._closing: list[subprocess.Popen[bytes]] = []  # processes that tell MLflow
        self._leases = Leases(
            store, self.owner, seconds=settings.lease_seconds, beat=self._beat_all,
            hang_seconds=settings.heartbeat_timeout_seconds,
        )  # fmt: skip
        self._beaten = float("-inf")
        self._sweeps = (self._sweep_uploads, self._sweep_runs, self._sweep_versions, self._close_in_mlflow)
        self._due = [float("-inf")] * len(self._sweeps)
        self._is_cut_off = False

    def run(self, stop: StopRequest | threading.Event) -> None:
        """Work until `stop` is set, then leave everything so that it can go on later."""
        log.info("dispatcher %s: %d jobs at a time", self.owner, self._settings.slots)
        self._leases.start()
        try:
            while not stop.is_set():
                self.step()
                stop.wait(self._settings.poll_seconds)
            self.wind_down()
        finally:
            self._leases.stop()

    def step(self) -> None:
        """Look at everything once. Raises nothing: what cannot be done now is done at the next step."""
        self._stop_what_is_due()
        self._leases.note_progress()
        with self._database():
            self._leases.renew()
            self._beat()
            self._take_stock()
            for attempt in list(self.attempts.values()):
                self._attend(attempt)
            # Training last: memory that was freed may do for one of the others. Each has places of its own, so that
            # nobody's uploads keep results from being published.
            self._fill(PUBLISHING, self._settings.import_concurrency)
            self._fill(IMPORTS, self._settings.import_concurrency, fair=True)
            self._fill(TRAINING, self._settings.slots)
        self._reap()

    def wind_down(self) -> None:
        """End what would not outlive us, gently, and queue it again; let go of the rest."""
        deadline = time.monotonic() + self._settings.stop_grace_seconds + FORCED_SECONDS
        if not self._runner.outlives_service:
            for attempt in self.attempts.values():
                attempt.stopping = True
            while self.attempts and time.monotonic() < deadline:
                self._stop_what_is_due()
                with self._database():
                    for attempt in list(self.attempts.values()):
                        self._attend(attempt)
                self._reap()
                time.sleep(min(self._settings.poll_seconds, 0.1))
        self._leases.stop()  # or it would take back what is let go
        with self._database():
            for attempt in list(self.attempts.values()):
                attempt.release()
                self._drop(attempt)
            self._store.dispatchers.remove(self.owner)
        self._runner.close()

    # Steps

    def _stop_what_is_due(self) -> None:
        for attempt in self.attempts.values():
            try:
                attempt.stop_if_due()
            except Exception:
                log.exception("job %s: cannot be stopped", attempt.job.id)

    def _beat(self) -> None:
        """Tell that we are alive, and look what others have left behind, now and then."""
        now = time.monotonic()
        if now - self._beaten < self._settings.lease_seconds / 3:
            return
        if self._beaten == float("-inf"):
            self._release_the_dead()
        jobs = sum(attempt.job.kind in TRAINING for attempt in self.attempts.values())
        info: dict[str, Any] = {"slots": self._settings.slots, "jobs": jobs, "runner": self._settings.runner}
        info |= {"node": platform.node(), "started": started(os.getpid())}
        self._store.dispatchers.beat(self.owner, host=self.host, pid=os.getpid(), info=info)
        self._beaten = now
        self._take_over(self.host)
        for job in self._store.claims.expire():
            log.info("job %s: its deadline passed before its turn came", job.id)
        reconcile(self._store)
        self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Tidy up what nobody needs; one sweep that fails is tried again soon, and hinders no other."""
        for number, sweep in enumerate(self._sweeps):
            if now < self._due[number]:
                continue
            self._due[number] = now + RESWEEP_SECONDS
            try:
                sweep()
            except (OSError, Unavailable) as error:
                log.warning("what nobody needs could not be tidied up, tried again soon: %s", error)
            else:
                self._due[number] = now + SWEEP_SECONDS

    def _sweep_uploads(self) -> None:
        sweep_uploads(self._settings, self._store)

    def _sweep_runs(self) -> None:
        for parent in (self._settings.runs, self._settings.jobs):
            sweep_discarded(parent)

    def _sweep_versions(self) -> None:
        sweep_versions(self._store, self._settings)

    def _close_in_mlflow(self) -> None:
        """Runs that MLflow still shows as running: cancelled between two attempts, or ended while it was away."""
        ended = self._store.jobs.maybe_open_in_mlflow(within=DAY_SECONDS)
        left = [job for job in ended if is_left_open(self._settings.run_directory(job.id))]
        for job in random.sample(left, min(len(left), CLOSED_AT_ONCE)):  # one that cannot be closed keeps out no other
            directory, environment = self._settings.run_directory(job.id), self._context.commands.environment()
            closing = close_in_mlflow(directory, job.state, environment=environment, reason=job.failure_message)
            self._closing.append(closing)

    def _take_over(self, host: str) -> None:
        """Go on with what dispatchers in that place have lost, and with what has long been lost anywhere."""
        foreign_after = self._settings.heartbeat_timeout_seconds + self._settings.stop_grace_seconds + FORCED_SECONDS
        for job in self._store.claims.take_over(
            self.owner, lease_seconds=self._settings.lease_seconds, host=host, foreign_after=foreign_after
        ):
            log.info("job %s, attempt %d: taken over from %s", job.id, job.attempt, job.runner)
            self._keep(job, adopted)

    def _release_the_dead(self) -> None:
        """Do not wait for the leases of a dispatcher that is certain to be dead, nor for the heartbeats of its jobs."""
        for other in self._store.dispatchers.alive(DAY_SECONDS):
            if not self._is_dead(other):
                continue
            for job in self._store.claims.held(other.id):
                with contextlib.suppress(Fenced):
                    self._store.claims.release(Claim.on(job))
            self._take_over(other.host)
            self._store.dispatchers.remove(other.id)

    def _is_dead(self, other: DispatcherRecord) -> bool:
        if other.host == self.host:
            return started(other.pid) != other.info.get("started")
        # SQLite is used by one machine, so that another boot is an earlier one, and of that nothing runs any more.
        return self._store.reads_inline and is_of_another_boot(other.host, self.host)

    def _take_stock(self) -> None:
        """What we hold, as the store sees it: a wish to cancel shows here, and what we lost, or did not know we had."""
        held = {job.id: job for job in self._store.claims.held(self.owner)}
        for attempt in list(self.attempts.values()):
            job = held.pop(attempt.job.id, None)
            if job is not None and job.attempt == attempt.claim.attempt:
                attempt.refresh(job)
            else:
                self._lose(attempt)
        for job in held.values():
            self._keep(job, adopted)

    def _fill(self, kinds: Sequence[Kind], places: int, *, fair: bool = False) -> None:
        """Claim and start while there are places, and memory; not too many, for those that run wait meanwhile."""
        for _ in range(2 * places):
            if (
                sum(attempt.job.kind in kinds for attempt in self.attempts.values()) >= places
                or self._context.backoff.is_active()
            ):
                return
            used = sum(attempt.job.memory_bytes or 0 for attempt in self.attempts.values())
            # With nothing beside it, even a job that was planned for a larger machine gets its chance. A cluster knows
            # by itself what fits.
            counts = self.attempts and self._settings.runner == "local"
            # One that uses more than there is must not keep those out that need none, or say nothing of it.
            free = max(0, self._settings.memory_bytes - used) if counts else None
            lease = self._settings.lease_seconds
            job = self._store.claims.claim(
                self.owner, kinds=kinds, lease_seconds=lease, free_memory=free, fair=fair
            )  # fmt: skip
            if job is None:
                return
            log.info("job %s, attempt %d: claimed", job.id, job.attempt)
            self._keep(job, claimed)
            if job.id in self.attempts:
                self._attend(self.attempts[job.id])

    def _keep(self, job: Job, make: Callable[[Context, Job], JobAttempt]) -> None:
        try:
            self.attempts[job.id] = make(self._context, job)
        except Exception as error:  # not even a launch spec can be made for it
            log.exception("job %s: cannot be launched", job.id)
            message = f"the dispatcher cannot handle this job ({type(error).__name__}: {error})"
            with contextlib.suppress(Fenced):
                self._store.claims.finish(Claim.on(job), "failed", failure_kind="infra", failure_message=message)

    def _attend(self, attempt: JobAttempt) -> None:
        """Do what is due for one job; its troubles stay its own."""
        self._leases.note_progress()
        errors, not_before = self._troubles.get(attempt.job.id, (0, 0.0))
        if time.monotonic() < not_before:
            return
        try:
            is_over = attempt.tick()
        except Unavailable:
            raise
        except Fenced:
            self._lose(attempt)
        except Exception as error:
            log.exception("job %s: unexpected", attempt.job.id)
            self._troubles[attempt.job.id] = (errors + 1, time.monotonic() + min(0.5 * 2**errors, 30.0))
            if errors + 1 >= PATIENCE:
                with contextlib.suppress(Fenced):
                    attempt.give_up(error)
                self._drop(attempt)
        else:
            self._troubles.pop(attempt.job.id, None)
            if is_over:
                self._drop(attempt)

    def _lose(self, attempt: JobAttempt) -> None:
        log.warning("job %s, attempt %d: another dispatcher has it now", attempt.job.id, attempt.claim.attempt)
        attempt.abandon()
        self._drop(attempt)

    def _drop(self, attempt: JobAttempt) -> None:
        attempt.close()
        self._closing += attempt.closing
        self.attempts.pop(attempt.job.id, None)
        self._troubles.pop(attempt.job.id, None)

    def _beat_all(self) -> None:
        for attempt in list(self.attempts.values()):
            attempt.beat()

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
