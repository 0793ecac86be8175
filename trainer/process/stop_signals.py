"""The wish to stop, as a signal handler may set it at any moment.

Not a threading.Event: a handler runs in the main thread between any two instructions, also while that is within
Event.wait and holds the lock that Event.set waits for.
"""

from __future__ import annotations

import signal
import time
from typing import Any

SLICE_SECONDS = 0.1  # so long a wish may go unnoticed
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """A flag with the methods of an Event that a loop needs."""

    def __init__(self) -> None:
        self._wanted = False

    def set(self) -> None:
        self._wanted = True

    def is_set(self) -> bool:
        return self._wanted

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until it is set. Returns whether it is."""
        end = time.monotonic() + seconds
        while not self._wanted and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_SECONDS))
        return self._wanted


def on_signals(stop: Stop) -> dict[signal.Signals, Any]:
    """Let SIGTERM, SIGINT and SIGHUP set it, but for a SIGHUP that `nohup` has us ignore. Returns the old handlers."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in SIGNALS if number is not signal.SIGHUP or not is_ignored]
    return {number: signal.signal(number, lambda *_: stop.set()) for number in heard}
