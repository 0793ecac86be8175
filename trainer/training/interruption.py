"""What stops a run is given the name that the retry rules know."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainer.errors import Infrastructure, OutOfMemory


@contextmanager
def translated_failures() -> Iterator[None]:
    """Give memory and disk failures the kind that the retry rules know."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(_MEMORY_ADVICE) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # torch's CPU allocator has no exception of its own
            raise OutOfMemory(_MEMORY_ADVICE) from error
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Infrastructure(f"the disk is full: {error}. Free space, then go on with --resume.") from error
        raise


_MEMORY_ADVICE = (
    "memory ran out. `nml estimate` shows what takes it; lower encoder.hidden or sampling.num_neighbors, or give the "
    "run more, then go on with --resume."
)
