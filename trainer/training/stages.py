"""Where the seconds of a run go: `stage` events in its journal, and a line in its log, as each part of it ends.

    queued → start → load → plan → train → export → evaluate → figures

`queued` is from a job's submission to the start of its process and `start` from there to the run's opening: interpreter
and imports. A run in a process that is already there has neither. An attempt that resumes has stages of its own.
`out of memory` is what an attempt took in vain, before the run goes on with a smaller plan.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import psutil

SUBMITTED = "NML_SUBMITTED"  # environment variable: when the job was submitted, in seconds since 1970
log = logging.getLogger("trainer")


class Stages:
    """A stopwatch whose laps are stages.

    Args:
        record: takes an event's type and fields; None: measures and says nothing.
    """

    def __init__(self, record: Callable[..., object] | None):
        self._record = record
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def end(self, name: str) -> None:
        """The stage that began with the last one's end is over."""
        wall, cpu = time.monotonic(), time.process_time()
        self._say(name, wall - self._wall, cpu - self._cpu)
        self._wall, self._cpu = wall, cpu

    def begin_with_process(self) -> None:
        """Say what came before: for the one run of a process that was started for it."""
        began = psutil.Process().create_time()
        if submitted := os.environ.get(SUBMITTED):
            self._say("queued", max(0.0, began - float(submitted)), 0.0)
        self._say("start", max(0.0, time.time() - began), time.process_time())

    def _say(self, name: str, seconds: float, cpu_seconds: float) -> None:
        if self._record is not None:
            self._record("stage", name=name, seconds=round(seconds, 3), cpu_seconds=round(cpu_seconds, 3))
            log.info("stage %s: %.2f s, %.2f s of processor time", name, seconds, cpu_seconds)
