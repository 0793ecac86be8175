"""A child process that the kernel ends when its parent dies, even by kill -9. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def signal_on_parent_death(number: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: the child gets this signal when the thread that started it is gone. Linux only."""
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it was killed before that
            os.kill(os.getpid(), signal.SIGKILL)

    return arm


def adopt_orphans() -> None:
    """Whatever descends from this process becomes its child when its own parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
