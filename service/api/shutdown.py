"""Ends event streams when the server is told to stop.

uvicorn waits for open answers before it tells the app that it stops, and an event stream would keep it waiting. So we
listen for the same signals, and pass them on.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """While this lasts, a signal to stop also calls `stop`, on the event loop. Only the main thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}

    def hear(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for each in _SIGNALS:
        handler = signal.getsignal(each)
        if callable(handler):  # someone, such as uvicorn, acts on it; the default would end us at once as it should
            before[each] = handler
            signal.signal(each, hear)
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is hear:
                signal.signal(each, handler)
