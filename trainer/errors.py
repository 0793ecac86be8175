"""How a run can fail, and the exit code each kind of failure leaves with.

The kinds are those of the service's retry rules (design section 5): what the user must change is `invalid`, what more
memory would cure is `oom`, what may go away by itself is `infra`.
"""

from __future__ import annotations


class TrainerError(Exception):
    """A failure with a sentence for the person who must act on it."""

    kind = "infra"
    exit_code = 5


class InvalidInput(TrainerError, ValueError):
    """The spec or the data cannot be used as they are; trying again changes nothing."""

    kind = "invalid"
    exit_code = 3


class NonFinite(InvalidInput):
    """The loss or an embedding became NaN or infinite."""


class OutOfMemory(TrainerError):
    """Memory ran out; a smaller tile, batch or graph may fit."""

    kind = "oom"
    exit_code = 4


class Infrastructure(TrainerError):
    """Disk, network or another process failed; the same run may succeed later."""


class Cancelled(TrainerError):
    """Stopped on request (SIGTERM, SIGINT) after writing a checkpoint; `--resume` goes on from there."""

    kind = "cancelled"
    exit_code = 6


USAGE_EXIT_CODE = 2  # what every Unix tool, and Typer, uses for a wrong command line
