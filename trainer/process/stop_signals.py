"""SIGTERM and SIGINT as a request to stop: a flag that a loop checks between two steps.

Not a threading.Event: a handler runs in the main thread between any two instructions, also while that is within
Event.wait and holds the lock that Event.set waits for.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SERVICE_SIGNALS = (*STOP_SIGNALS, signal.SIGHUP)  # a service also ends with its terminal
_SLICE_SECONDS = 0.1  # a request may go unnoticed for so long


class StopRequest:
    """Set by a signal while it is entered, or by `set`. Only the main thread can have signal handlers; elsewhere
    `set` alone counts. A SIGHUP that `nohup` has us ignore stays ignored.

    Args:
        doing: what the log says upon the first signal; None: nothing.
        on_repeat: called for each signal after the first; None: the handler from before acts on it.
    """

    def __init__(
        self, doing: str | None = None, *, signals: Sequence[signal.Signals] = STOP_SIGNALS,
        on_repeat: Callable[[], None] | None = None, log: logging.Logger | None = None,
    ):  # fmt: skip
        self._doing, self._signals, self._on_repeat = doing, signals, on_repeat
        self._log = log or logging.getLogger("trainer")
        self._is_set = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def listen(self) -> None:
        """Put our handlers in place, again if a library has put its own there since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._signals:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous.setdefault(number, signal.getsignal(number))
                signal.signal(number, self._handle)

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until it is set. Returns whether it is."""
        end = time.monotonic() + seconds
        while not self._is_set and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_SECONDS))
        return self._is_set

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._is_set and self._on_repeat is not None:
            self._on_repeat()
            return
        self._is_set = True
        if self._on_repeat is None:
            signal.signal(number, self._previous[number])
        if self._doing is not None:
            self._log.warning("%s: %s", signal.Signals(number).name, self._doing)
