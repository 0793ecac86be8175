"""Jobs on a Ray cluster: the shim as the entrypoint of a Ray job, with the resources that the launch spec names.

Ray knows whether the shim is alive. How the trainer ended is in its outcome file, on storage that the dispatcher and
all nodes share, as are the run and the stop file. A job's processes are Ray's, so they outlive the dispatcher, and any
dispatcher can take them over. Every node needs this project (installed, or at the same path) and its `train` extra.

While the head cannot be reached nothing is decided: what runs may go on, and what was to start is submitted later. A
submission can be repeated safely, because Ray accepts an id once and the shim starts an attempt once. So a job waits
for free resources as long as it takes: Ray gives up after RAY_JOB_START_TIMEOUT_SECONDS of the head (15 minutes), and
then the job is submitted again.

How a job is stopped. Gracefully: by the stop file, upon which the shim sends SIGTERM to the trainer, once. Ray's own
stop would send it to every process of the job, and the shim would pass it on, so that the trainer would get it twice
and die while writing its checkpoint. So Ray's stop is for force, after the dispatcher's stop_grace_seconds. Ray then
sends SIGKILL to what is left after RAY_JOB_STOP_WAIT_TIME_S, which each job sets for itself: 3 s, Ray's default, would
kill the shim before it has tidied up. On NFS the stop file may be seen late: mount with `lookupcache=positive`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.dispatch.ray_jobs import MaybeSubmitted, RayJobs, RayRefused, RayUnavailable, TokenRefused, tail
from service.dispatch.runner import Alive, Gone, LaunchSpec, Status, read_outcome, shim_command, take_attempt
from trainer.parallel.connection import python_path

LOOK_SECONDS = 1.0  # between requests about one job: Ray's head reads all its jobs for each answer
AWAY_SECONDS = 10.0  # the same, after a request that was not answered
SETTLE_SECONDS = 5.0  # for an outcome to appear on the shared storage after Ray has seen the shim end
KILL_SECONDS = 45  # from Ray's SIGTERM to SIGKILL: the shim may take 40 to end what the trainer left behind
STARTED_BEFORE = 2  # exit code of a shim that found its attempt started by another
FORCE_SECONDS = 5.0  # between requests to stop by force
PENDING_SECONDS = 30.0  # of waiting for resources, after which the log says so
log = logging.getLogger("service.dispatch")


@dataclass
class _Known:
    """What this process remembers of a submission; no other process needs it. Times are of time.monotonic."""

    next_look: float = -math.inf
    next_force: float = -math.inf
    missed_since: float | None = None  # when we first found it started, not alive, and without an outcome
    log_pending_at: float | None = None  # when to log that it is pending


class RayRunner:
    """The cluster whose dashboard is at `url`."""

    outlives_service = True

    def __init__(
        self, url: str, *, environ: Mapping[str, str] | None = None, home: Path | None = None,
        python: str = sys.executable, look_seconds: float = LOOK_SECONDS, settle_seconds: float = SETTLE_SECONDS,
    ):  # fmt: skip
        """`python` is the interpreter on the nodes; `environ` and `home` tell where the token is (ray_jobs).

        Raises:
            InvalidInput: `url` is not an address, or a token is needed and there is none.
        """
        self._environ = os.environ if environ is None else environ
        self._jobs = RayJobs(url, self._environ, home=home)
        self._python, self._look_seconds, self._settle_seconds = python, look_seconds, settle_seconds
        self._known: dict[str, _Known] = {}

    def intent(self, launch: LaunchSpec) -> dict[str, Any]:
        return {"kind": "ray", "submission_id": submission_id(launch)}

    def start(self, launch: LaunchSpec) -> dict[str, Any]:
        """Submit the shim. If the cluster cannot be reached, `poll` tries again.

        Raises:
            OSError: the cluster refuses our token, or this job.
        """
        try:
            self._jobs.submit(submission_id(launch), self._request(launch))
        except TokenRefused:
            raise
        except (RayUnavailable, MaybeSubmitted) as error:
            log.warning("%s: may not have been submitted, retrying: %s", submission_id(launch), error)
        return self.intent(launch)

    def poll(self, launch: LaunchSpec, reference: Mapping[str, Any] | None) -> Status:
        """The outcome, once there is one; before that, what Ray knows of the submission.

        Raises:
            OSError: the cluster or the storage cannot be reached.
        """
        name, now = submission_id(launch), time.monotonic()
        known = self._known.setdefault(name, _Known())
        status: Status | None = read_outcome(launch)
        if status is None and now < known.next_look:
            return Alive()
        if status is None and launch.stop_file.exists() and _prevent(launch):
            with contextlib.suppress(OSError):  # Ray only stops what it has started; this will end by itself
                self._jobs.stop(name)
            status = Gone("stopped before it started")
        if status is None:
            known.next_look = now + AWAY_SECONDS
            status = self._look(launch, name, known)
            known.next_look = now + self._look_seconds
        if not isinstance(status, Alive):
            del self._known[name]
        return status

    def stop(self, launch: LaunchSpec, reference: Mapping[str, Any] | None, *, force: bool) -> None:
        """Ask the shim through the stop file; with force, through Ray.

        Raises:
            OSError: the storage or, for force, the cluster cannot be reached.
        """
        name, now = submission_id(launch), time.monotonic()
        known = self._known.setdefault(name, _Known())
        if not launch.stop_file.exists():
            launch.stop_file.touch()
            known.next_look = now  # it may not even have started
        if force and now >= known.next_force:
            known.next_force = now + FORCE_SECONDS
            self._jobs.stop(name)

    def close(self) -> None:
        self._jobs.close()

    def _request(self, launch: LaunchSpec) -> dict[str, Any]:
        # The trainer's environment is in the launch file, not here: Ray shows this to everyone and expands `$NAME`.
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(KILL_SECONDS), **python_path(self._environ)}
        if self._jobs.token_mode != "token":
            variables["RAY_AUTH_MODE"] = self._jobs.token_mode  # for runs that connect to the cluster themselves
        return {
            "entrypoint": "exec " + shlex.join(shim_command(launch.launch_file, python=self._python)),
            "runtime_env": {"env_vars": variables},
            "metadata": {"nml_job": launch.job_id, "nml_attempt": str(launch.attempt)},
            "entrypoint_num_cpus": launch.cpus,
            "entrypoint_num_gpus": launch.gpus,
            "entrypoint_memory": launch.memory_bytes or 0,
        }

    def _look(self, launch: LaunchSpec, name: str, known: _Known) -> Status:
        """The status that follows from Ray's answer and the files of the attempt."""
        was_claimed = (
            launch.outcome_file.exists()
        )  # before we ask: if it is pending after that, its shim did not claim it
        job = self._jobs.status(name)
        state = None if job is None else job["status"]
        if state == "RUNNING":
            known.missed_since = None
            return Alive()
        if job is not None and state == "PENDING":
            if was_claimed:
                return Gone("stopped before it started")
            _log_pending_once(name, known, str(job.get("message")))
            return Alive()
        if outcome := read_outcome(launch):
            return outcome
        if not launch.outcome_file.exists() and launch.launch_file.exists() and _should_be_submitted_again(job):
            return self._submit_again(launch, name, job)
        if not _prevent(launch) and self._may_still_report(launch, known, job):
            return Alive()
        if job is None:
            return Gone(f"Ray at {self._jobs.url} does not know {name}: the cluster was restarted, or is another one")
        return Gone(f"Ray reports {state}: {tail(str(job.get('message')))}")

    def _submit_again(self, launch: LaunchSpec, name: str, job: dict[str, Any] | None) -> Status:
        log.info("%s: submitted again, because Ray gave up waiting for resources or does not know it", name)
        try:
            if job is not None:
                self._jobs.delete(name)
            self._jobs.submit(name, self._request(launch))
        except RayRefused as error:
            if _prevent(launch):
                return Gone(str(error))
        return Alive()

    def _may_still_report(self, launch: LaunchSpec, known: _Known, job: dict[str, Any] | None) -> bool:
        """Whether an outcome may still arrive from a shim that had started and may not be alive."""
        wait = self._settle_seconds
        if not _was_seen_to_end(job):  # its node or the head is lost, and the shim may be alive on the other side
            launch.stop_file.touch()
            wait += launch.stop_seconds
        if known.missed_since is None:
            known.missed_since = time.monotonic()
        return time.monotonic() - known.missed_since < wait


def submission_id(launch: LaunchSpec) -> str:
    """Job and attempt."""
    return f"{launch.job_id}-{launch.attempt}"


def _should_be_submitted_again(job: dict[str, Any] | None) -> bool:
    return job is None or job.get("error_type") == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"


def _was_seen_to_end(job: dict[str, Any] | None) -> bool:
    """Whether Ray saw the shim end, rather than lost track of it or saw a second shim give way to the first."""
    return job is not None and (job["status"] == "STOPPED" or job.get("driver_exit_code") not in (None, STARTED_BEFORE))


def _prevent(launch: LaunchSpec) -> bool:
    """Whether no shim has started this attempt and, from now on, none will."""
    descriptor = take_attempt(launch, with_room=False)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _log_pending_once(name: str, known: _Known, message: str) -> None:
    now = time.monotonic()
    if known.log_pending_at is None:
        known.log_pending_at = now + PENDING_SECONDS
    elif now > known.log_pending_at:
        known.log_pending_at = math.inf
        log.info("%s: %s", name, message)
