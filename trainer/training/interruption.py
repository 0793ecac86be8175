"""How a run is asked to stop, and how what stops it is named."""

from __future__ import annotations

import errno
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from trainer.errors import Infrastructure, OutOfMemory
from trainer.parallel.stop import Stop

log = logging.getLogger("trainer")


class StopRequest:
    """Turns SIGTERM and SIGINT into a flag the loop reads between steps; a second signal acts as usual."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def how(self) -> Stop | None:
        return "cancel" if self.requested else None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python refuses handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, self._previous[number])
        log.warning("%s: finishing this step, then checkpointing", signal.Signals(number).name)


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
