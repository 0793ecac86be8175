"""What follows from the end of an attempt: the end of the job, or another attempt (design section 5).

exit code 0                          succeeded, even if it was to be cancelled meanwhile
else, cancelled by a user            cancelled
3                                    failed at once: trying again changes nothing
an import that crashed, or had too   the same: each attempt reads the same file in the same way
little memory by its own limit
else, the deadline has passed        failed, as `deadline`; so also if the next attempt would start after it
else, stopped with the service       queued again; not counted as a retry
4, or killed by the kernel for lack  queued again, to go on with a smaller plan, `oom_retries` times; then failed
of memory
it could not be started              queued again after a pause, as often as it takes; not counted as a retry
anything else                        queued again after a pause, which doubles, `infra_retries` times; then failed
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from service.dispatch.runner import Ended, Gone, NotStarted, Outcome
from service.settings import Settings
from service.store.records import Job
from trainer.errors import Cancelled, InvalidInput, OutOfMemory

FailureKind = Literal["invalid", "oom", "infra", "deadline"]
_LONGEST = 4_000  # characters of a message
_LONGEST_REASON = 300
_STOPPED_BY_US = (signal.SIGTERM, signal.SIGKILL)
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGFPE, signal.SIGILL)  # what a reader does to itself


@dataclass(frozen=True)
class Finish:
    """The job is over."""

    state: Literal["succeeded", "failed", "cancelled"]
    kind: FailureKind | None = None
    message: str | None = None


@dataclass(frozen=True)
class Retry:
    """The job is queued again, with these counts."""

    delay: float  # seconds until then
    infra_retries: int
    oom_retries: int
    reason: str
    kind: FailureKind | None = None  # None: not counted as a retry


Decision = Finish | Retry


def decide(job: Job, ended: Ended, now: float, settings: Settings, *, stopping: bool = False) -> Decision:
    """What to do with a job whose attempt has ended.

    Args:
        now: seconds since 1970.
        stopping: this dispatcher is stopping, and has asked the run to stop.
    """
    code = ended.exit_code if isinstance(ended, Outcome) else None
    if code == 0:
        return Finish("succeeded")
    if job.state == "cancelling":
        return Finish("cancelled")
    kind, message = classify(ended)
    if job.kind == "import" and (why := _blames_the_files(ended)):
        kind, message = "invalid", f"{why} ({first_line(message)})"
    if kind == "invalid":
        return Finish("failed", kind, message)
    if job.deadline is not None and now >= job.deadline:
        return Finish("failed", "deadline", _too_late("the deadline passed", code, message))
    if stopping and kind == "infra" and _stopped_by_us(ended):
        return Retry(0.0, job.infra_retries, job.oom_retries, "service stopped")
    if isinstance(ended, NotStarted):
        # Longer than the dispatcher's own pause, so that a job that never starts is not the first one tried each time.
        delay = max(2 * ended.pause, _pause(job.attempt, settings))
        left = (
            delay if job.deadline is None else job.deadline - now
        )  # at its deadline it is claimed once more, and fails
        return Retry(min(delay, left), job.infra_retries, job.oom_retries, first_line(message))
    counts = {"oom": (job.oom_retries, settings.oom_retries), "infra": (job.infra_retries, settings.infra_retries)}
    used, most = counts[kind]
    if used >= most:
        return Finish("failed", kind, f"{message}\nThe job was retried {used} times." if used > 1 else message)
    delay = _pause(used, settings)
    if job.deadline is not None and now + delay >= job.deadline:
        late = "the deadline would have passed before the next attempt"
        return Finish("failed", "deadline", _too_late(late, code, message))
    infra, oom = job.infra_retries + (kind == "infra"), job.oom_retries + (kind == "oom")
    return Retry(delay, infra, oom, f"{kind}: {first_line(message)}", kind)


def classify(ended: Ended) -> tuple[Literal["invalid", "oom", "infra"], str]:
    """The kind of a failure, and its message."""
    if isinstance(ended, Gone | NotStarted):
        return "infra", ended.message[:_LONGEST]
    message = (ended.message or _how(ended))[:_LONGEST]
    if ended.exit_code == InvalidInput.exit_code:
        return "invalid", message
    if ended.exit_code == OutOfMemory.exit_code or ended.oom_killed or ended.kind == OutOfMemory.kind:
        return "oom", message
    return "infra", message


def _blames_the_files(ended: Ended) -> str | None:
    """Why the next attempt at an import would end in the same way; none if it might not."""
    if not isinstance(ended, Outcome) or ended.oom_killed:
        return None
    if ended.signal in _CRASHES:
        return "their reader crashed on these files. Write them anew, with fewer columns or shorter rows"
    if ended.exit_code == OutOfMemory.exit_code:
        return (
            "these files take more memory to read than an import has. Write them anew, as Parquet or with shorter rows"
        )
    return None


def _pause(times: int, settings: Settings) -> float:
    """Seconds of pause after so many retries; they double with each."""
    return min(settings.retry_seconds * 2.0 ** min(times, 60), settings.retry_seconds_max)


def _stopped_by_us(ended: Ended) -> bool:
    if not isinstance(ended, Outcome):
        return True
    return ended.exit_code == Cancelled.exit_code or ended.signal in _STOPPED_BY_US


def _too_late(what: str, code: int | None, message: str) -> str:
    return what if code == Cancelled.exit_code else f"{what}; the last attempt failed: {first_line(message)}"


def _how(ended: Outcome) -> str:
    end = f"exited with code {ended.exit_code}" if ended.signal is None else f"was ended by signal {ended.signal}"
    return f"the process {end} and reported no error"


def first_line(message: str) -> str:
    """For a log line or a reason."""
    return (message.strip().splitlines() or [""])[0][:_LONGEST_REASON]
