"""What stops a run is given the name that the retry rules know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from trainer.errors import Cancelled, OutOfMemory
from trainer.process.outcome import MEMORY_ADVICE, as_trainer_error, failure
from trainer.run.directory import RunDirectory

_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory")


@contextmanager
def translated_failures() -> Iterator[None]:
    """Give memory and disk failures the kind that the retry rules know."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(MEMORY_ADVICE) from error
    except (MemoryError, RuntimeError, OSError) as error:
        # torch's CPU allocator and its memory maps have no exception of their own
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY):
            raise OutOfMemory(MEMORY_ADVICE) from error
        known = as_trainer_error(error)
        if known is None:
            raise
        raise known from error


def record_failure(run: RunDirectory, error: BaseException) -> None:
    """Say in the journal why a run failed; one that was stopped has said so, and can be resumed."""
    if not isinstance(error, Cancelled | KeyboardInterrupt):
        kind, message = failure(error)
        with suppress(OSError):  # a full disk, most likely
            run.record("failed", kind=kind, message=message)
