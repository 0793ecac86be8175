"""The loop that claims jobs, starts them, and follows each of them to its end (design section 5).

Several dispatchers may run at once, on one machine or many. Each holds its jobs by leases in the database; one that
dies or hangs loses them to another, which takes over the very same processes. All that a dispatcher knows is in the
database and in files, so it may be killed at any moment.
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
from service.dispatch.attempt import Context, JobAttempt, fail
from service.dispatch.host_id import host_id, is_of_another_boot
from service.dispatch.job_commands import JobCommands
from service.dispatch.leases import Leases, LeaseWatch
from service.dispatch.procfs import started
from service.dispatch.runner import Runner
from service.dispatch.start_backoff import LEAST_SECONDS, StartBackoff
from service.dispatch.steady_clock import SteadyClock
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
FORCED_SECONDS = 15.0  # beyond the grace period, for killed processes to be gone
MAX_ERRORS = 10  # unexpected errors in a row with one job, after which it fails
CLEANUP_SECONDS = 3_600.0  # between cleanups
CLEANUP_RETRY_SECONDS = 60.0  # after one that failed
DAY_SECONDS = 86_400.0
CLOSED_AT_ONCE = 4  # runs in MLflow: a process each
log = logging.getLogger("service.dispatch")


class Dispatcher:
    """One dispatcher; `run` it in the main thread of a process of its own.

    Args:
        runner: where jobs run.
        commands: what each job runs; tests have their own.
        owner: of the leases; unique to each process.
    """

    def __init__(
        self, settings: Settings, store: Store, runner: Runner, *, commands: JobCommands | None = None,
        owner: str | None = None, clock: Callable[[], float] | None = None, watch: LeaseWatch | None = None,
    ):  # fmt: skip
        self._settings, self._store, self._runner = settings, store, runner
        self._clock = clock or SteadyClock()
        self._context = Context(
            settings, store, runner, commands or JobCommands(settings), StartBackoff(settings), self._clock
        )
        self._watch = watch or LeaseWatch()
        self._longest_pause = 2 * max(settings.retry_seconds_max, LEAST_SECONDS)  # service.dispatch.retry_policy
        self.host = host_id()
        self.owner = owner or f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"[-128:]
        self.attempts: dict[str, JobAttempt] = {}
        self._errors: dict[str, tuple[int, float]] = {}  # by job: unexpected errors in a row, when to try again
        self._closing: list[subprocess.Popen[bytes]] = []  # processes that close runs in MLflow
        self._leases = Leases(
            store, self.owner, seconds=settings.lease_seconds, beat=self._beat_all,
            hang_seconds=settings.heartbeat_timeout_seconds,
        )  # fmt: skip
        self._beaten = float("-inf")
        self._cleanups = (self._clean_uploads, self._clean_runs, self._clean_versions, self._close_in_mlflow)
        self._due = [float("-inf")] * len(self._cleanups)
        self._is_database_down = False

    def run(self, stop: StopRequest | threading.Event) -> None:
        """Work until `stop` is set, then stop or release the jobs so that they can go on later."""
        log.info("dispatcher %s: runs up to %d jobs at a time", self.owner, self._settings.slots)
        self._leases.start()
        try:
            while not stop.is_set():
                self.step()
                stop.wait(self._settings.poll_seconds)
            self.wind_down()
        finally:
            self._leases.stop()

    def step(self) -> None:
        """One turn of the loop. Raises nothing: what cannot be done now is done at the next step."""
        self._stop_due()
        self._leases.note_progress()
        with self._database():
            self._leases.renew()
            self._beat()
            self._refresh()
            for attempt in list(self.attempts.values()):
                self._tick(attempt)
            # Training last: freed memory may suffice for one of the others. Each has slots of its own, so that uploads
            # do not keep results from being published.
            self._claim(PUBLISHING, self._settings.import_concurrency)
            self._claim(IMPORTS, self._settings.import_concurrency, fair=True)
            self._claim(TRAINING, self._settings.slots)
        self._reap()

    def wind_down(self) -> None:
        """Stop the jobs that would not outlive us, gracefully, and queue them again; release the others."""
        deadline = time.monotonic() + self._settings.stop_grace_seconds + FORCED_SECONDS
        if not self._runner.outlives_service:
            for attempt in self.attempts.values():
                attempt.stopping = True
            while self.attempts and time.monotonic() < deadline:
                self._stop_due()
                with self._database():
                    for attempt in list(self.attempts.values()):
                        self._tick(attempt)
                self._reap()
                time.sleep(min(self._settings.poll_seconds, 0.1))
        self._leases.stop()  # or it would renew what we release
        with self._database():
            for attempt in list(self.attempts.values()):
                attempt.release()
                self._drop(attempt)
            self._store.dispatchers.remove(self.owner)
        self._runner.close()

    # Steps

    def _stop_due(self) -> None:
        for attempt in self.attempts.values():
            try:
                attempt.stop_if_due()
            except Exception:
                log.exception("job %s: cannot stop it", attempt.job.id)

    def _beat(self) -> None:
        """Now and then: record that we are alive, take over what others have lost, and clean up."""
        now = time.monotonic()
        if now - self._beaten < self._settings.lease_seconds / 3:
            return
        if self._beaten == float("-inf"):
            self._release_the_dead()
            self._note_neighbours()
        jobs = sum(attempt.job.kind in TRAINING for attempt in self.attempts.values())
        info: dict[str, Any] = {"slots": self._settings.slots, "jobs": jobs, "runner": self._settings.runner}
        info |= {"node": platform.node(), "started": started(os.getpid())}
        self._store.dispatchers.beat(self.owner, host=self.host, pid=os.getpid(), info=info)
        self._beaten = now
        self._take_over(self.host)
        for job in self._store.claims.expire():
            log.info("job %s: failed, its deadline passed while it was queued", job.id)
        reconcile(self._store)
        self._clean_up(now)

    def _clean_up(self, now: float) -> None:
        """Remove what nobody needs any more. A cleanup that fails is retried soon, and stops no other."""
        for number, cleanup in enumerate(self._cleanups):
            if now < self._due[number]:
                continue
            self._due[number] = now + CLEANUP_RETRY_SECONDS
            try:
                cleanup()
            except (OSError, Unavailable) as error:
                log.warning("cleanup failed, will be retried in %g s: %s", CLEANUP_RETRY_SECONDS, error)
            else:
                self._due[number] = now + CLEANUP_SECONDS

    def _clean_uploads(self) -> None:
        sweep_uploads(self._settings, self._store, now=self._earliest())

    def _clean_runs(self) -> None:
        for parent in (self._settings.runs, self._settings.jobs):
            sweep_discarded(parent)

    def _clean_versions(self) -> None:
        sweep_versions(self._store, self._settings, now=self._earliest())

    def _earliest(self) -> float:
        """Seconds since 1970, by the clock that says the least: nothing is older than it seems by that."""
        return min(self._clock(), time.time())

    def _close_in_mlflow(self) -> None:
        """Close runs that MLflow still shows as running: cancelled between two attempts, or ended during an outage."""
        ended = self._store.jobs.maybe_open_in_mlflow(within=DAY_SECONDS)
        left = [job for job in ended if is_left_open(self._settings.run_directory(job.id))]
        for job in random.sample(left, min(len(left), CLOSED_AT_ONCE)):  # one that cannot be closed blocks no other
            directory, environment = self._settings.run_directory(job.id), self._context.commands.environment()
            closing = close_in_mlflow(directory, job.state, environment=environment, reason=job.failure_message)
            self._closing.append(closing)

    def _take_over(self, host: str) -> None:
        """Take over jobs with an expired lease: on this host at once, on other hosts after a long time."""
        foreign_after = self._settings.heartbeat_timeout_seconds + self._settings.stop_grace_seconds + FORCED_SECONDS
        for job in self._store.claims.take_over(
            self.owner, lease_seconds=self._settings.lease_seconds, host=host, foreign_after=foreign_after,
            unchanged_for=self._watch.unchanged_for,
        ):  # fmt: skip
            log.info("job %s, attempt %d: taken over from %s", job.id, job.attempt, job.runner)
            self._hold(job, started=True)

    def _release_the_dead(self) -> None:
        """Take over from dispatchers that are certainly dead, without waiting for leases and heartbeats to expire."""
        for other in self._store.dispatchers.alive(DAY_SECONDS):
            if not self._is_dead(other):
                continue
            for job in self._store.claims.held(other.id):
                with contextlib.suppress(Fenced):
                    self._store.claims.release(Claim.on(job))
            self._take_over(other.host)
            self._store.dispatchers.remove(other.id)

    def _note_neighbours(self) -> None:
        for other in self._store.dispatchers.alive(self._settings.lease_seconds):
            if other.host == self.host and other.id != self.owner and self._settings.runner == "local":
                log.warning(
                    "dispatcher %s (process %d) on this machine serves the same queue. Jobs are shared and none runs "
                    "twice, but each of us runs up to its own number of jobs and fills its own memory limit",
                    other.id, other.pid,
                )  # fmt: skip

    def _is_dead(self, other: DispatcherRecord) -> bool:
        if other.host == self.host:
            return started(other.pid) != other.info.get("started")
        # SQLite is used on one machine only, so another boot is an earlier one, of which nothing runs any more.
        return self._store.reads_inline and is_of_another_boot(other.host, self.host)

    def _refresh(self) -> None:
        """Read the jobs we hold from the store: some may be cancelled, lost, or unknown to us."""
        held = {job.id: job for job in self._store.claims.held(self.owner)}
        for attempt in list(self.attempts.values()):
            job = held.pop(attempt.job.id, None)
            if job is not None and job.attempt == attempt.claim.attempt:
                attempt.refresh(job)
            else:
                self._lose(attempt)
        for job in held.values():
            self._hold(job, started=True)

    def _claim(self, kinds: Sequence[Kind], slots: int, *, fair: bool = False) -> None:
        """Claim and start jobs while slots and memory are free; a few at a time, as running jobs wait meanwhile."""
        for _ in range(2 * slots):
            taken = sum(attempt.job.kind in kinds for attempt in self.attempts.values())
            if taken >= slots or self._context.backoff.is_active():
                return
            used = sum(attempt.job.memory_bytes or 0 for attempt in self.attempts.values())
            # Alone, even a job that was planned for a larger machine is tried. A cluster decides by itself what fits.
            counts = self.attempts and self._settings.runner == "local"
            # Not negative: jobs that need no memory, or do not say, may run beside one that uses more than there is.
            free = max(0, self._settings.memory_bytes - used) if counts else None
            lease = self._settings.lease_seconds
            job = self._store.claims.claim(
                self.owner, kinds=kinds, lease_seconds=lease, free_memory=free, fair=fair,
                longest_pause=self._longest_pause,
            )  # fmt: skip
            if job is None:
                return
            log.info("job %s, attempt %d: claimed", job.id, job.attempt)
            self._hold(job, started=False)
            if job.id in self.attempts:
                self._tick(self.attempts[job.id])

    def _hold(self, job: Job, *, started: bool) -> None:
        try:
            self.attempts[job.id] = JobAttempt(self._context, job, started=started)
        except Exception as error:  # not even a launch spec can be made for it
            log.exception("job %s: cannot launch it", job.id)
            with contextlib.suppress(Fenced):
                fail(self._store, Claim.on(job), error)

    def _tick(self, attempt: JobAttempt) -> None:
        """Do what is due for one job; its errors do not affect others."""
        self._leases.note_progress()
        errors, not_before = self._errors.get(attempt.job.id, (0, 0.0))
        if time.monotonic() < not_before:
            return
        try:
            is_over = attempt.tick()
        except Unavailable:
            raise
        except Fenced:
            self._lose(attempt)
        except Exception as error:
            log.exception("job %s: unexpected error", attempt.job.id)
            self._errors[attempt.job.id] = (errors + 1, time.monotonic() + min(0.5 * 2**errors, 30.0))
            if errors + 1 >= MAX_ERRORS:
                with contextlib.suppress(Fenced):
                    attempt.give_up(error)
                self._drop(attempt)
        else:
            self._errors.pop(attempt.job.id, None)
            if is_over:
                self._drop(attempt)

    def _lose(self, attempt: JobAttempt) -> None:
        log.warning("job %s, attempt %d: lost to another dispatcher", attempt.job.id, attempt.claim.attempt)
        attempt.abandon()
        self._drop(attempt)

    def _drop(self, attempt: JobAttempt) -> None:
        self._closing += attempt.closing
        self.attempts.pop(attempt.job.id, None)
        self._errors.pop(attempt.job.id, None)

    def _beat_all(self) -> None:
        for attempt in list(self.attempts.values()):
            attempt.beat()

    def _reap(self) -> None:
        self._closing = [process for process in self._closing if process.poll() is None]

    @contextlib.contextmanager
    def _database(self) -> Iterator[None]:
        """For what needs the database: while that is unavailable trainers go on, and the loop tries again."""
        try:
            yield
        except Unavailable as error:
            if not self._is_database_down:
                log.warning("the database is unavailable; running jobs go on: %s", error)
            self._is_database_down = True
        except Exception:
            log.exception("unexpected error")
        else:
            if self._is_database_down:
                log.info("the database is available again")
            self._is_database_down = False
