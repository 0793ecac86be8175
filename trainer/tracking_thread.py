"""A run told to MLflow by a thread of its own, so that nothing else ever waits for the tracker.

The thread does all that waits, even MLflow's import, and is fed by a bounded queue. Errors that may pass are retried
with the queued points kept; any other error switches tracking off for the rest of the run, with one warning.

    run = BackgroundRun(uri="sqlite:///runs.db", home=Path("."))
    run.begin(About(directory, "experiment", "name", params={}, tags={}))
    run.log({"loss": 0.5}, step=1)
    run.close("FINISHED", wait=30)
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from trainer.tracking_run import (
    MAX_METRICS,
    About,
    Point,
    TrackedRun,
    is_transient,
    numeric_leaves,
    prepare_environment,
)

T = TypeVar("T")

_BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds: a tracker that restarts is back within a minute
_LAST_BACK_OFF = 1.0  # seconds, once the run is over and someone waits
_GATHER = 1.0  # seconds between batches: fast epochs share one request instead of each costing training a write
_ASK_PARENT = 0.25  # seconds between looks whether the parent's run is there


@dataclass(frozen=True)
class _Ending:
    status: str
    tags: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    final: bool = True


class BackgroundRun:
    """Reports one run to MLflow; no method raises or blocks because of the tracker but `join`, which waits.

    Args:
        uri: where MLflow is.
        home: where the artifacts of a bare database are.
        capacity: metric points kept while the tracker is slow; a call of `log` whose points do not fit is dropped and
            its points are counted.
        warn: gets the one warning; none: the log.
    """

    def __init__(
        self, *, uri: str, home: Path, capacity: int = 100_000, warn: Callable[[str], None] | None = None
    ) -> None:
        self._uri, self._home, self._capacity = uri, home, capacity
        self._warn = warn or logging.getLogger("trainer.tracking").warning
        self._run: TrackedRun | None = None
        self._experiment: str | None = None
        self._thread: threading.Thread | None = None
        self._state = threading.Condition()  # guards everything below, which both threads use
        self._queue: deque[Point] = deque()
        self._in_flight = 0  # points taken from the queue and not yet stored
        self._sent = self._dropped = 0
        self._error: str | None = None
        self._off = self._reached = self._closing = False
        self._ending: _Ending | None = None
        self._deadline = math.inf  # finite as soon as someone waits for the end
        self._granted = 0.0  # seconds that they wait at most

    def begin(self, about: About) -> None:
        """Start the thread, which creates the run or continues the one noted in <directory>/tracking.json.

        Where the run has a parent, the thread waits as long as that is not known: the parent's own tracker may still
        be on its way to the server.
        """
        if self._thread is not None:
            self._warn(f"one tracker reports one run; make another for {about.directory}")
            return
        prepare_environment()
        self._experiment = about.experiment
        self._run = TrackedRun(about, uri=self._uri, home=self._home)
        arguments = (self._run, about.parent)
        self._thread = threading.Thread(target=self._work, args=arguments, name="mlflow-tracker", daemon=True)
        self._thread.start()

    def log(self, metrics: Any, step: int, *, at: float | None = None) -> None:
        """Queue the numbers of nested mappings; `at`: when they came about, in seconds since 1970, none: now."""
        self._offer(metrics, step=step, at=at, capacity=self._capacity)

    def close(
        self,
        status: str,
        *,
        metrics: Any = None,
        step: int = 0,
        tags: Mapping[str, str] | None = None,
        files: Sequence[Path] = (),
        final: bool = True,
        wait: float | None = None,
    ) -> None:
        """Say how the run ended; nothing may be logged after it.

        Args:
            status: FINISHED, FAILED or KILLED.
            metrics, step: last numbers, kept whatever the capacity.
            files: to be uploaded, from below the run's directory.
            final: whether to note in tracking.json that nothing is left to be told; false: the run may go on.
            wait: seconds to wait at most until all is sent, then tracking is switched off; none: not at all, which
                leaves the thread its usual patience until someone calls `join`.
        """
        if self._thread is None:
            return  # failed before it started: there is nothing to close
        self._offer(metrics, step=step, at=None, capacity=None)
        self._finish(_Ending(status, tags or {}, tuple(files), final))
        if wait is not None:
            self.join(wait)

    def hurry(self, timeout: float) -> None:
        """Someone waits from now on: a tracker that never answered is given up soon, any other after `timeout` s."""
        with self._state:
            self._deadline, self._granted = time.monotonic() + timeout, max(self._granted, timeout)
            self._state.notify_all()

    def join(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for what is still to be sent, then switch tracking off."""
        if self._thread is None:
            return
        self.hurry(timeout)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.switch_off(TimeoutError(f"the tracker did not take everything within {self._granted:.3g} s"))

    def switch_off(self, error: BaseException) -> None:
        """Tell nothing any more, for this reason; the thread ends as soon as MLflow lets it go."""
        with self._state:
            if self._off:
                return
            self._off = True
            self._error = self._error or describe(error)
            self._dropped += self._in_flight + len(self._queue)
            self._queue.clear()
            self._in_flight = 0
            self._state.notify_all()
        self._warn(f"MLflow tracking is off for the rest of this run, which goes on without it: {self._error}")

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended: everything was sent, or tracking is off."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def backlog(self) -> int:
        """Metric points not yet sent."""
        with self._state:
            return len(self._queue) + self._in_flight

    def summary(self) -> dict[str, Any]:
        """Whether tracking still works, the MLflow run, the first error, and metric points sent and not sent."""
        with self._state:
            return {
                "enabled": not self._off,
                "run_id": self._run.run_id if self._run else None,
                "experiment": self._experiment,
                "error": self._error,
                "dropped": self._dropped,
                "sent": self._sent,
            }

    # The caller's side

    def _offer(self, metrics: Any, *, step: int, at: float | None, capacity: int | None) -> None:
        # The time is taken once, so that a point sent twice is one point to MLflow.
        milliseconds = round(1_000 * at) if at is not None else time.time_ns() // 1_000_000
        points = [(name, value, milliseconds, step) for name, value in numeric_leaves(metrics).items()]
        with self._state:
            if self._off or (capacity is not None and len(self._queue) + len(points) > capacity):
                self._dropped += len(points)
            else:
                self._queue.extend(points)
                self._state.notify_all()

    def _finish(self, ending: _Ending | None) -> None:
        with self._state:
            self._ending, self._closing = self._ending or ending, True
            self._state.notify_all()

    # The background thread's side

    def _work(self, run: TrackedRun, parent: Callable[[], str | None] | None) -> None:
        try:
            while parent is not None and parent() is None:
                self._wait_for_parent()
            self._patiently(run.open)
            while points := self._take():
                self._stored(self._patiently(partial(run.log, points)))
            if self._ending is not None:
                self._end(run, self._ending)
        except BaseException as error:
            self.switch_off(error)

    def _end(self, run: TrackedRun, ending: _Ending) -> None:
        try:
            self._patiently(partial(run.upload, ending.files))
        except Exception as error:
            if is_transient(error):
                raise
            with self._state:  # say, a bucket without its driver: the run itself can still be closed
                self._error = self._error or describe(error)
            self._warn(f"MLflow did not take the run's files: {self._error}")
        self._patiently(partial(run.end, ending.status, ending.tags, final=ending.final))

    def _wait_for_parent(self) -> None:
        with self._state:
            self._state.wait_for(lambda: self._off, timeout=_ASK_PARENT)
            if self._off or time.monotonic() > self._deadline:
                raise TimeoutError("the run that this one is part of is not known to MLflow")

    def _take(self) -> list[Point]:
        """The next batch, as soon as it is full, a while has passed or the run ends; empty: nothing will follow."""
        with self._state:
            self._state.wait_for(lambda: self._queue or self._closing or self._off)
            self._state.wait_for(lambda: self._closing or self._off or len(self._queue) >= MAX_METRICS, timeout=_GATHER)
            self._in_flight = min(len(self._queue), MAX_METRICS)
            return [self._queue.popleft() for _ in range(self._in_flight)]

    def _stored(self, count: int) -> None:
        with self._state:
            if not self._off:  # else they are counted as dropped already
                self._in_flight, self._sent = 0, self._sent + count

    def _patiently(self, step: Callable[[], T]) -> T:
        """Do a step, again after errors that may pass; raises the last error when patience or time is over."""
        for attempt in count():
            if self._off:
                raise TimeoutError("the run is over")
            try:
                result = step()
            except Exception as error:
                if not is_transient(error) or not self._pause(attempt):
                    raise
            else:
                self._reached = True
                return result
        raise AssertionError("counting never ends")

    def _pause(self, attempt: int) -> bool:
        """Wait before the next attempt; False if there should be none.

        Once people wait, a tracker that answered before is tried until the deadline, one that never did gets a second
        attempt and no more.
        """
        with self._state:
            if self._deadline == math.inf and attempt < len(_BACK_OFF):
                self._state.wait_for(lambda: self._off or self._deadline < math.inf, timeout=_BACK_OFF[attempt])
            elif self._deadline < math.inf and (self._reached or attempt == 0):
                self._state.wait_for(lambda: self._off, timeout=_LAST_BACK_OFF)
            else:
                return False
            return not self._off and time.monotonic() < self._deadline


def describe(error: BaseException) -> str:
    """An error in a line, as the tag `error` has it: no password, no novel."""
    if isinstance(error, ModuleNotFoundError) and error.name == "mlflow":
        return "MLflow is not installed: pip install mlflow, or set run.track=false"
    return without_password(f"{type(error).__name__}: {error}")[:600]


def without_password(text: str) -> str:
    """Text whose addresses do not say who asks and with which password."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)
