"""One attempt of one job in a dispatcher's hands, from its start to what follows from its end.

Whatever is done here may be cut off by kill -9 between any two lines, and is then done again by the next dispatcher
that holds the job. So each step is either a transaction, or can be repeated, and they come in this order:

    intent recorded → launch file written → shim started → reference recorded
    …events recorded, each once, until the process has ended and its file is read to the end…
    data set or version concluded, MLflow told → the job ended or queued again, in one transaction
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from service.datasets.imports import conclude_import
from service.dispatch.job_commands import JobCommands
from service.dispatch.relay import Relay
from service.dispatch.results import result_of
from service.dispatch.retry_policy import Finish, Retry, decide
from service.dispatch.runner import Ended, Gone, LaunchSpec, NotStarted, Outcome, Refused, Runner, write_launch
from service.dispatch.start_backoff import StartBackoff
from service.dispatch.tracking import close_in_mlflow, is_left_open, tracking_note
from service.embeddings.jobs import finish_index, finish_publish, publish_job
from service.settings import Settings
from service.store import Store
from service.store.errors import Fenced
from service.store.records import Claim, Job
from trainer.errors import Cancelled

CONCLUDE = {"import": conclude_import, "publish": finish_publish, "index": finish_index}  # these tell no events
RELAY_SECONDS = 1.0  # of recording for one job before others get their turn
NOTE_SECONDS = 1.0  # between looks at tracking.json
log = logging.getLogger("service.dispatch")


@dataclass(frozen=True)
class Context:
    """What all cares share."""

    settings: Settings
    store: Store
    runner: Runner
    commands: JobCommands
    backoff: StartBackoff
    clock: Callable[[], float] = time.time


class JobAttempt:
    """Made by `claimed` or `adopted`; then `press` and `tick` again and again.

    Every method but `press` may raise Unavailable (call again) and Fenced (call `abandon` and forget it).
    """

    def __init__(self, context: Context, job: Job, *, begun: bool):
        self.job, self.claim = job, Claim.on(job)
        self._context = context
        self.launch: LaunchSpec = context.commands.launch_spec(job)
        self._reference = job.runner
        self._begun = begun  # whether someone may have started it
        self._recorded = True  # the reference, in the store
        self._ended: Ended | None = None
        self._relay: Relay | None = None
        self._stop_asked: float | None = None
        self._note_read = float("-inf")
        self.stopping = False  # the dispatcher itself is about to stop
        self.closing: list[subprocess.Popen[bytes]] = []

    def refresh(self, job: Job) -> None:
        """The job as the store has it by now, still ours: its state tells whether someone wants it cancelled."""
        self.job = job

    def stop_if_due(self) -> None:
        """End the process if it should end: ask, then force it. Needs no database."""
        settings, job = self._context.settings, self.job
        late = job.deadline is not None and self._context.clock() >= job.deadline
        if self._ended is not None or not (job.state == "cancelling" or late or self.stopping):
            return
        now = time.monotonic()
        self._stop_asked = self._stop_asked or now
        force = now - self._stop_asked >= settings.stop_grace_seconds
        try:
            self._context.runner.stop(self.launch, self._reference, force=force)
        except OSError as error:
            log.warning("job %s: cannot be stopped at the moment: %s", job.id, error)

    def tick(self) -> bool:
        """Start, relay, and settle it if the process has ended. Returns whether nothing is left to do."""
        if not self._begun:
            self._start()
        if not self._recorded:
            self._record_reference()
        if self._ended is None:
            self._poll()  # before relaying: all that it wrote is then in the file
        if self._relayed() and self._ended is not None:
            self._settle(self._ended)
            return True
        return False

    def beat(self) -> None:
        """Let its shim know that someone holds this attempt. May be called from another thread."""
        with contextlib.suppress(OSError):
            self.launch.heartbeat_file.touch()

    def give_up(self, error: Exception) -> None:
        """End a job that cannot be looked after: something about it is beyond us every time."""
        with contextlib.suppress(OSError):
            self._context.runner.stop(self.launch, self._reference, force=True)
        message = f"the dispatcher cannot handle this job ({type(error).__name__}: {error})"
        self._context.store.claims.finish(self.claim, "failed", failure_kind="infra", failure_message=message[:2_000])

    def release(self) -> None:
        """Let another dispatcher have it now; its process goes on."""
        with contextlib.suppress(Fenced):
            self._context.store.claims.release(self.claim)

    def abandon(self) -> None:
        """It is another's now, and so is its process, unless nobody but us knows of that, or the attempt is over."""
        if not self._recorded or not self._is_held():
            with contextlib.suppress(OSError):
                self._context.runner.stop(self.launch, self._reference, force=True)

    def close(self) -> None:
        self._relay = None

    # Steps

    def _start(self) -> None:
        """Start the attempt that was just claimed. Where that fails, the attempt has ended."""
        context, job = self._context, self.job
        if job.deadline is not None and context.clock() >= job.deadline:
            self._begun, self._ended = True, Gone("its turn had not come")
            return
        intent = context.runner.intent(self.launch)
        self.job = context.store.claims.record(self.claim, runner=intent)
        self._reference, self._begun = intent, True
        try:
            context.commands.write_spec(job)
            write_launch(self.launch)
            self.beat()
            self._reference = context.runner.start(self.launch)
        except OSError as error:
            pause, message = context.backoff.failed(), f"it cannot be started: {error}"
            log.warning("job %s, attempt %d: %s; nothing is claimed for %g s", job.id, job.attempt, message, pause)
            is_its_own = isinstance(error, Refused)
            self._ended = Outcome(None, kind="infra", message=message) if is_its_own else NotStarted(message, pause)
            return
        context.backoff.succeeded()
        self._recorded = False
        self._record_reference()

    def _record_reference(self) -> None:
        self.job = self._context.store.claims.record(self.claim, runner=self._reference)
        self._recorded = True

    def _poll(self) -> None:
        try:
            status = self._context.runner.poll(self.launch, self._reference)
        except OSError as error:
            log.warning("job %s: cannot be looked at for the moment: %s", self.job.id, error)
            return
        if isinstance(status, Outcome | Gone):
            self._ended = status

    def _relayed(self) -> bool:
        """Record new events; whether the journal is read to its end."""
        if self.job.kind in CONCLUDE:
            return True
        store, directory = self._context.store, self._context.settings.run_directory(self.job.id)
        if self._relay is None:
            # From the store, not from memory: what the last transaction did may be unknown to us.
            job = store.jobs.get(self.job.id)
            if job is None:
                raise Fenced(f"job {self.job.id} is no more")
            self._relay = Relay(job, directory, partial(store.events.epoch, job.id))
        until = time.monotonic() + RELAY_SECONDS
        while True:
            try:
                batch = self._relay.next_batch()
            except OSError as error:
                log.warning("job %s: its events cannot be read at the moment: %s", self.job.id, error)
                return self._ended is not None  # the disk is broken: the end counts for more than the last lines
            except Exception:
                self.close()
                raise
            try:
                updates = batch.updates | self._mlflow_run()
                if batch.events or updates:
                    self.job = store.claims.record(self.claim, batch.events, **updates)
            except Exception:  # whatever it is: this relay believes that the batch is stored
                self.close()
                raise
            if not batch.more or time.monotonic() >= until:
                return not batch.more

    def _mlflow_run(self) -> dict[str, Any]:
        if self.job.mlflow_run_id is not None or time.monotonic() - self._note_read < NOTE_SECONDS:
            return {}
        self._note_read = time.monotonic()
        run = tracking_note(self._context.settings.run_directory(self.job.id)).get("run_id")
        return {} if run is None else {"mlflow_run_id": run[:64]}

    def _settle(self, ended: Ended) -> None:
        """Decide, and let everyone know. May be repeated in whole."""
        context, claims = self._context, self._context.store.claims
        self._record_last_words()
        decision = decide(self.job, ended, context.clock(), context.settings, stopping=self.stopping)
        if isinstance(decision, Finish) and self.job.kind in CONCLUDE:
            decision = self._conclude(decision)
        if isinstance(decision, Retry):
            self.job = claims.requeue(
                self.claim, delay=decision.delay, reason=decision.reason, failure_kind=decision.kind,
                infra_retries=decision.infra_retries, oom_retries=decision.oom_retries,
            )  # fmt: skip
            log.info("job %s, attempt %d: %s, %s", self.job.id, self.job.attempt, self.job.state, decision.reason)
            if self.job.is_terminal:  # someone wanted it cancelled at the last moment
                self._tell_mlflow(ended, Finish("cancelled"))
            return
        self._tell_mlflow(ended, decision)
        succeeded = decision.state == "succeeded"
        result = result_of(self.job.kind, context.settings.run_directory(self.job.id)) if succeeded else None
        publish = publish_job(self.job) if self.job.kind == "train" and (result or {}).get("embeddings") else None
        self.job = claims.finish(
            self.claim, decision.state, failure_kind=decision.kind, failure_message=decision.message, result=result,
            publish=publish,
        )  # fmt: skip
        log.info("job %s, attempt %d: %s%s", self.job.id, self.job.attempt, decision.state, _because(decision))

    def _record_last_words(self) -> None:
        note = tracking_note(self._context.settings.run_directory(self.job.id))
        updates: dict[str, Any] = {}
        if "run_id" in note and self.job.mlflow_run_id is None:
            updates["mlflow_run_id"] = note["run_id"][:64]
        if note.get("error") != self.job.tracker_error:
            updates["tracker_error"] = note.get("error")
        if updates:
            self.job = self._context.store.claims.record(self.claim, **updates)

    def _conclude(self, decision: Finish) -> Finish | Retry:
        context = self._context
        failure = None if decision.state == "succeeded" else decision.message or "it was cancelled"
        try:
            CONCLUDE[self.job.kind](self.job, context.store, context.settings, failure=failure)
        except (OSError, ValueError) as error:
            if failure is not None:
                raise
            unread = Outcome(None, kind="infra", message=f"what it made cannot be read: {error}")
            again = decide(self.job, unread, context.clock(), context.settings, stopping=self.stopping)
            return self._conclude(again) if isinstance(again, Finish) else again
        return decision

    def _tell_mlflow(self, ended: Ended, decision: Finish) -> None:
        """Close the run in MLflow if its trainer could not: a process of its own that nobody waits for."""
        directory = self._context.settings.run_directory(self.job.id)
        said = isinstance(ended, Outcome) and ended.exit_code in (0, Cancelled.exit_code)
        if said or self.closing or self.job.kind in CONCLUDE or not is_left_open(directory):
            return
        with contextlib.suppress(OSError):
            environment = self._context.commands.environment()
            closing = close_in_mlflow(directory, decision.state, environment=environment, reason=decision.message)
            self.closing.append(closing)

    def _is_held(self) -> bool:
        """Whether someone looks after this very attempt, and so after its process."""
        job = self._context.store.jobs.get(self.job.id)
        if job is None or job.attempt != self.claim.attempt:
            return False
        return job.state in ("running", "cancelling")


def claimed(context: Context, job: Job) -> JobAttempt:
    """A job that is to be started."""
    return JobAttempt(context, job, begun=False)


def adopted(context: Context, job: Job) -> JobAttempt:
    """A job whose process someone else has started, or was about to."""
    return JobAttempt(
        context, replace(job, runner=job.runner or context.runner.intent(context.commands.launch_spec(job))), begun=True
    )


def _because(decision: Finish) -> str:
    if decision.kind is None:
        return ""
    return f" ({decision.kind}: {(decision.message or '').strip().splitlines()[0] if decision.message else ''})"
