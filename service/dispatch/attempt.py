"""One attempt at a job, from its start to what follows from its end.

A dispatcher may be killed between any two lines here; the next one that holds the job then repeats the step. So each
step is either a transaction or can be repeated, and they come in this order:

    intent recorded → launch file written → shim started → reference recorded
    → events recorded, each once, until the process has ended and the journal is read to its end
    → data set or version finished, run closed in MLflow → job ended or queued again, in one transaction
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from service.datasets.imports import conclude_import
from service.dispatch.job_commands import JobCommands
from service.dispatch.relay import Relay
from service.dispatch.results import result_of
from service.dispatch.retry_policy import Finish, Retry, decide, first_line
from service.dispatch.runner import Ended, Gone, LaunchSpec, NotStarted, Outcome, Refused, Runner, write_launch
from service.dispatch.start_backoff import StartBackoff
from service.dispatch.tracking import close_in_mlflow, is_left_open, tracking_note
from service.embeddings.jobs import finish_index, finish_publish, publish_job
from service.settings import Settings
from service.store import Store
from service.store.errors import Fenced
from service.store.records import Claim, Job
from trainer.errors import Cancelled

FINISH = {"import": conclude_import, "publish": finish_publish, "index": finish_index}  # these have no journal
RELAY_SECONDS = 1.0  # of recording events of one job before the others are served
TRACKING_SECONDS = 1.0  # between reads of tracking.json
log = logging.getLogger("service.dispatch")


@dataclass(frozen=True)
class Context:
    """What all attempts of a dispatcher share."""

    settings: Settings
    store: Store
    runner: Runner
    commands: JobCommands
    backoff: StartBackoff
    clock: Callable[[], float] = time.time


class JobAttempt:
    """The dispatcher calls `stop_if_due` and `tick` again and again, until `tick` returns True.

    Every method but `stop_if_due` may raise Unavailable (call it again) and Fenced (call `abandon`, and drop this).

    Args:
        started: whether a dispatcher may have started this attempt already; else the first `tick` does.
    """

    def __init__(self, context: Context, job: Job, *, started: bool):
        self.job, self.claim = job, Claim.on(job)
        self._context = context
        self.launch: LaunchSpec = context.commands.launch_spec(job)
        self._reference = job.runner or context.runner.intent(self.launch)
        self._started = started
        self._is_recorded = True  # whether the store has the reference
        self._ended: Ended | None = None
        self._relay: Relay | None = None
        self._stop_requested: float | None = None
        self._tracking_read = float("-inf")
        self.stopping = False  # whether the dispatcher is about to stop
        self.closing: list[subprocess.Popen[bytes]] = []  # processes that close the run in MLflow

    def refresh(self, job: Job) -> None:
        """Take the job as the store has it now; its state tells whether it is to be cancelled."""
        self.job = job

    def stop_if_due(self) -> None:
        """Stop the process if the job is cancelled or late, or we are stopping; kill it after the grace period."""
        settings, job = self._context.settings, self.job
        late = job.deadline is not None and self._context.clock() >= job.deadline
        if self._ended is not None or not (job.state == "cancelling" or late or self.stopping):
            return
        now = time.monotonic()
        self._stop_requested = self._stop_requested or now
        force = now - self._stop_requested >= settings.stop_grace_seconds
        try:
            self._context.runner.stop(self.launch, self._reference, force=force)
        except OSError as error:
            log.warning("job %s: cannot stop it now, will try again: %s", job.id, error)

    def tick(self) -> bool:
        """Start it, record its events, and settle it once the process has ended. Returns whether it is settled."""
        if not self._started:
            self._start()
        if not self._is_recorded:
            self._record_reference()
        if self._ended is None:
            self._poll()  # first: whatever a process that has ended wrote is then in the journal
        if self._record_events() and self._ended is not None:
            self._settle(self._ended)
            return True
        return False

    def beat(self) -> None:
        """Tell the shim that a dispatcher holds this attempt. May be called from another thread."""
        with contextlib.suppress(OSError):
            self.launch.heartbeat_file.touch()

    def give_up(self, error: Exception) -> None:
        """Kill the process and fail the job, after an error of ours that happens every time."""
        self._kill()
        fail(self._context.store, self.claim, error)

    def release(self) -> None:
        """Give up the lease, so that another dispatcher can take the job over now; its process goes on."""
        with contextlib.suppress(Fenced):
            self._context.store.claims.release(self.claim)

    def abandon(self) -> None:
        """The lease is lost: kill the process if the attempt is over, or if no other dispatcher knows of it."""
        if not self._is_recorded or not self._is_held():
            self._kill()

    # Steps

    def _start(self) -> None:
        """Start the attempt that was just claimed. If that fails, the attempt has ended."""
        context, job = self._context, self.job
        if job.deadline is not None and context.clock() >= job.deadline:
            self._started, self._ended = True, Gone("the job was still queued")
            return
        intent = context.runner.intent(self.launch)
        self.job = context.store.claims.record(self.claim, runner=intent)
        self._reference, self._started = intent, True
        try:
            context.commands.write_spec(job)
            write_launch(self.launch)
            self.beat()
            self._reference = context.runner.start(self.launch)
        except OSError as error:
            pause, message = context.backoff.failed(), f"cannot start the job: {error}"
            log.warning("job %s, attempt %d: %s; claiming no jobs for %g s", job.id, job.attempt, message, pause)
            refused = isinstance(error, Refused)  # this job only
            self._ended = Outcome(None, kind="infra", message=message) if refused else NotStarted(message, pause)
            return
        context.backoff.succeeded()
        self._is_recorded = False
        self._record_reference()

    def _record_reference(self) -> None:
        self.job = self._context.store.claims.record(self.claim, runner=self._reference)
        self._is_recorded = True

    def _poll(self) -> None:
        try:
            status = self._context.runner.poll(self.launch, self._reference)
        except OSError as error:
            log.warning("job %s: cannot get its status now, will try again: %s", self.job.id, error)
            return
        if isinstance(status, Outcome | Gone):
            self._ended = status

    def _record_events(self) -> bool:
        """Record new events; whether the journal is read to its end."""
        if self.job.kind in FINISH:
            return True
        store, directory = self._context.store, self._context.settings.run_directory(self.job.id)
        if self._relay is None:
            # From the store, not from memory: we may not know whether the last transaction was committed.
            job = store.jobs.get(self.job.id)
            if job is None:
                raise Fenced(f"job {self.job.id} was deleted")
            self._relay = Relay(job, directory, partial(store.events.epoch, job.id))
        until = time.monotonic() + RELAY_SECONDS
        while True:
            try:
                try:
                    batch = self._relay.next_batch()
                except OSError as error:
                    log.warning("job %s: cannot read its events now: %s", self.job.id, error)
                    return self._ended is not None  # with a broken disk, the end matters more than the last events
                updates = batch.updates | self._new_mlflow_run()
                if batch.events or updates:
                    self.job = store.claims.record(self.claim, batch.events, **updates)
            except Exception:
                self._relay = None  # it takes the batch as stored
                raise
            if not batch.more or time.monotonic() >= until:
                return not batch.more

    def _new_mlflow_run(self) -> dict[str, Any]:
        """The run in MLflow, once there is one; it is looked for now and then."""
        if self.job.mlflow_run_id is not None or time.monotonic() - self._tracking_read < TRACKING_SECONDS:
            return {}
        self._tracking_read = time.monotonic()
        run = tracking_note(self._context.settings.run_directory(self.job.id)).get("run_id")
        return {} if run is None else {"mlflow_run_id": run[:64]}

    def _settle(self, ended: Ended) -> None:
        """Decide what follows and record it. May be repeated as a whole."""
        context, claims = self._context, self._context.store.claims
        self._record_tracking()
        decision = decide(self.job, ended, context.clock(), context.settings, stopping=self.stopping)
        if isinstance(decision, Finish) and self.job.kind in FINISH:
            decision = self._finish_product(decision)
        if isinstance(decision, Retry):
            self.job = claims.requeue(
                self.claim, delay=decision.delay, reason=decision.reason, failure_kind=decision.kind,
                infra_retries=decision.infra_retries, oom_retries=decision.oom_retries,
            )  # fmt: skip
            log.info("job %s, attempt %d: %s, %s", self.job.id, self.job.attempt, self.job.state, decision.reason)
            if self.job.is_terminal:  # it was cancelled at the last moment
                self._close_in_mlflow(ended, Finish("cancelled"))
            return
        self._close_in_mlflow(ended, decision)
        succeeded = decision.state == "succeeded"
        result = result_of(self.job.kind, context.settings.run_directory(self.job.id)) if succeeded else None
        publish = publish_job(self.job) if self.job.kind == "train" and (result or {}).get("embeddings") else None
        self.job = claims.finish(
            self.claim, decision.state, failure_kind=decision.kind, failure_message=decision.message, result=result,
            publish=publish,
        )  # fmt: skip
        log.info("job %s, attempt %d: %s%s", self.job.id, self.job.attempt, decision.state, _because(decision))

    def _record_tracking(self) -> None:
        note = tracking_note(self._context.settings.run_directory(self.job.id))
        updates: dict[str, Any] = {}
        if "run_id" in note and self.job.mlflow_run_id is None:
            updates["mlflow_run_id"] = note["run_id"][:64]
        if note.get("error") != self.job.tracker_error:
            updates["tracker_error"] = note.get("error")
        if updates:
            self.job = self._context.store.claims.record(self.claim, **updates)

    def _finish_product(self, decision: Finish) -> Finish | Retry:
        """Publish the data set, version or index that the job made, or mark it as failed."""
        context = self._context
        failure = None if decision.state == "succeeded" else decision.message or "the job was cancelled"
        try:
            FINISH[self.job.kind](self.job, context.store, context.settings, failure=failure)
        except (OSError, ValueError) as error:
            if failure is not None:
                raise
            unread = Outcome(None, kind="infra", message=f"cannot read what the job wrote: {error}")
            again = decide(self.job, unread, context.clock(), context.settings, stopping=self.stopping)
            return self._finish_product(again) if isinstance(again, Finish) else again
        return decision

    def _close_in_mlflow(self, ended: Ended, decision: Finish) -> None:
        """Close the run in MLflow if its trainer could not, in a process that nobody waits for."""
        directory = self._context.settings.run_directory(self.job.id)
        was_closed = isinstance(ended, Outcome) and ended.exit_code in (0, Cancelled.exit_code)
        if was_closed or self.closing or self.job.kind in FINISH or not is_left_open(directory):
            return
        with contextlib.suppress(OSError):
            environment = self._context.commands.environment()
            closing = close_in_mlflow(directory, decision.state, environment=environment, reason=decision.message)
            self.closing.append(closing)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            self._context.runner.stop(self.launch, self._reference, force=True)

    def _is_held(self) -> bool:
        """Whether this attempt still runs as far as the store knows, so that another dispatcher has its process."""
        job = self._context.store.jobs.get(self.job.id)
        if job is None or job.attempt != self.claim.attempt:
            return False
        return job.state in ("running", "cancelling")


def fail(store: Store, claim: Claim, error: Exception) -> None:
    """End a job that the dispatcher cannot handle."""
    message = f"the dispatcher cannot handle this job ({type(error).__name__}: {error})"
    store.claims.finish(claim, "failed", failure_kind="infra", failure_message=message[:2_000])


def _because(decision: Finish) -> str:
    return "" if decision.kind is None else f" ({decision.kind}: {first_line(decision.message or '')})"
