"""How a command that failed says why: to people on stderr, to the process that started it through a pipe.

A service starts `python -m trainer` with NML_OUTCOME_FD, the number of an inherited pipe, and reads from it one line of
JSON, {"kind": …, "message": …}. Without that variable nothing is written but the log. Loads nothing heavy.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat

from trainer.errors import Infrastructure, OutOfMemory, TrainerError

_VARIABLE = "NML_OUTCOME_FD"
_LONGEST = 3_000  # bytes of a message; a pipe takes 4,096 at once or not at all, and JSON escapes some

MEMORY_ADVICE = (
    "memory ran out. `nml estimate` shows what takes it; lower encoder.hidden or sampling.num_neighbors, or give the "
    "run more, then go on with --resume."
)


def as_trainer_error(error: BaseException) -> TrainerError | None:
    """The kind of failure that the retry rules know; None if it has none."""
    if isinstance(error, TrainerError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return OutOfMemory(MEMORY_ADVICE)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Infrastructure(f"the disk is full: {error}. Free space, then go on with --resume.")
    return None


def failure(error: BaseException) -> tuple[str, str]:
    """Kind and message of a failure, short enough for a pipe."""
    known = as_trainer_error(error)
    message = str(known) if known is not None else f"{type(error).__name__}: {error}"
    short = message.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
    return "infra" if known is None else known.kind, short


def report_failure(error: BaseException) -> None:
    """Tell the process that started this one, if it listens. Never raises."""
    kind, message = failure(error)
    text = json.dumps({"kind": kind, "message": message}, ensure_ascii=False) + "\n"
    try:
        descriptor = int(os.environ[_VARIABLE])
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):  # else the variable was passed on without the pipe
            os.write(descriptor, text.encode())
    except (KeyError, ValueError, OSError):
        pass


def exit_code_for(error: BaseException, log: logging.Logger) -> int:
    """Log a failure and report it; the exit code to leave with, 1 for one that has no kind."""
    report_failure(error)
    known = as_trainer_error(error)
    if known is None:
        log.error("unexpected: %s", error, exc_info=error)
        return 1
    log.error("%s: %s", known.kind, known)
    return known.exit_code
