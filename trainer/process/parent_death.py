"""A child process that ends when its parent dies, even by kill -9. Standard library only.

`signal_on_parent_death` leaves it to the kernel and needs nothing of the child. `call_on_parent_death` is for a child
that has to tidy up first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
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


def call_on_parent_death(callback: Callable[[], None]) -> None:
    """Call this in a thread once the parent is gone. It must have started us with `stdin=PIPE` and write nothing."""

    def watch() -> None:
        os.read(0, 1)  # not through sys.stdin, whose lock a daemon thread would hold at exit
        callback()

    threading.Thread(target=watch, name="parent death", daemon=True).start()


def adopt_orphans() -> None:
    """Whatever descends from this process becomes its child when its own parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
