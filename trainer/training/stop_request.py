"""How a process is asked to stop."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from trainer.parallel.stop import Stop

log = logging.getLogger("trainer")


class StopRequest:
    """Turns SIGTERM and SIGINT into a flag that is read between steps; a second signal acts as usual."""

    def __init__(self, doing: str = "finishing this step, then checkpointing") -> None:
        self.requested = False
        self._doing = doing
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
        log.warning("%s: %s", signal.Signals(number).name, self._doing)
