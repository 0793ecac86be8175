"""Tells MLflow about a run, in the background: a tracker outage costs metrics, never training (design section 2).

One daemon thread does all that waits for MLflow, even its import, and is fed by a bounded queue. Errors that may pass
are retried with the queued points kept; any other error switches tracking off for the rest of the run, with one
warning. Only the end of a run waits for the thread, and at most `finish_timeout` seconds.

    tracker = Tracker()                    # MLFLOW_TRACKING_URI, else SQLite below NML_HOME (~/.nml)
    fit(spec, directory, callbacks=[tracker])
    tracker.summary()["error"]             # None, or why points are missing
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from trainer.callbacks import Callback, Result, RunInfo
from trainer.errors import Cancelled
from trainer.home import nml_home
from trainer.tracking_run import (
    MAX_METRICS,
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
_EXIT_TIMEOUT = 5.0  # seconds the interpreter waits for a run that never said how it ended
_ARTIFACTS = ("spec.json", "metrics.json", "embeddings/manifest.json", "figures/*.png")


def tracking_uri(home: Path | None = None) -> str:
    """MLFLOW_TRACKING_URI if set, else the SQLite database in `home`."""
    database = (home or nml_home()).expanduser().resolve() / "mlflow.db"
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database.as_posix()}"


def ui_command(home: Path | None = None, uri: str | None = None) -> str:
    """What a person does to look at the runs: a command for a database, the address for a server."""
    uri = uri or tracking_uri(home)
    if uri.startswith(("http://", "https://")):
        return f"open {_without_password(uri)}"
    return f"mlflow ui --backend-store-uri {shlex.quote(_without_password(uri))}"


@dataclass(frozen=True)
class _Ending:
    status: str
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Path, ...] = ()


class Tracker(Callback):
    """Reports one run to MLflow; no method raises or blocks because of the tracker, see the module.

    Args:
        uri: where MLflow is; none: `tracking_uri(home)`.
        home: where the default database and the artifacts of any bare database are; none: `nml_home()`.
        finish_timeout: seconds that `on_end` and `on_failure` wait at most for what is still to be sent.
        capacity: metric points kept while the tracker is slow; an epoch that does not fit is dropped and counted.
    """

    def __init__(
        self,
        *,
        uri: str | None = None,
        home: Path | None = None,
        finish_timeout: float = 30.0,
        capacity: int = 100_000,
    ) -> None:
        self._home = (home or nml_home()).expanduser().resolve()
        self._uri = uri or tracking_uri(self._home)
        self._finish_timeout, self._capacity = finish_timeout, capacity
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
        self._deadline = float("inf")

    def on_start(self, run: RunInfo) -> None:
        """Start the thread, which creates the run or continues the one noted in <directory>/tracking.json."""
        if self._thread is not None:
            logging.getLogger(__name__).warning("one Tracker reports one run; make another for %s", run.directory)
            return
        prepare_environment()
        self._experiment = run.spec.run.experiment
        self._run = TrackedRun(run, uri=self._uri, home=self._home)
        self._thread = threading.Thread(target=self._work, args=(self._run,), name="mlflow-tracker", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def on_epoch(self, event: Mapping[str, Any]) -> None:
        """Queue the epoch's numbers."""
        self._offer(event.get("metrics"), step=event.get("epoch", 0), capacity=self._capacity)

    def on_end(self, result: Result) -> None:
        """Send final figures and small files, then close the run as FINISHED."""
        self._offer(result.metrics, step=result.epochs, capacity=None)
        files = tuple(path for pattern in _ARTIFACTS for path in sorted(result.directory.glob(pattern)))
        self._finish(_Ending("FINISHED", artifacts=files), self._finish_timeout)

    def on_failure(self, error: BaseException) -> None:
        """Close the run as FAILED, or KILLED if it can be resumed; the reason is its tag `error`."""
        status = "KILLED" if isinstance(error, Cancelled | KeyboardInterrupt) else "FAILED"
        self._finish(_Ending(status, tags={"error": _describe(error)}), self._finish_timeout)

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

    # The training thread's side

    def _offer(self, metrics: Any, *, step: int, capacity: int | None) -> None:
        now = time.time_ns() // 1_000_000  # taken once, so that a point sent twice is one point to MLflow
        points = [(name, value, now, step) for name, value in numeric_leaves(metrics).items()]
        with self._state:
            if self._off or (capacity is not None and len(self._queue) + len(points) > capacity):
                self._dropped += len(points)
            else:
                self._queue.extend(points)
                self._state.notify_all()

    def _finish(self, ending: _Ending | None, timeout: float) -> None:
        if self._thread is None:
            return  # failed before it started: there is nothing to close
        with self._state:
            self._ending, self._closing, self._deadline = ending, True, time.monotonic() + timeout
            self._state.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._switch_off(TimeoutError(f"the tracker did not take everything within {timeout:g} s"))
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        # A daemon thread that is importing or writing while the interpreter is taken down can abort the process.
        self._finish(None, _EXIT_TIMEOUT)

    # The background thread's side

    def _work(self, run: TrackedRun) -> None:
        try:
            self._patiently(run.open)
            while points := self._take():
                self._stored(self._patiently(partial(run.log, points)))
            if self._ending is not None:
                self._end(run, self._ending)
        except BaseException as error:
            self._switch_off(error)

    def _end(self, run: TrackedRun, ending: _Ending) -> None:
        try:
            self._patiently(partial(run.upload, ending.artifacts))
        except Exception as error:
            if is_transient(error):
                raise
            with self._state:  # say, a bucket without its driver: the run itself can still be closed
                self._error = self._error or _describe(error)
            logging.getLogger(__name__).warning("MLflow did not take the run's files: %s", self._error)
        self._patiently(partial(run.end, ending.status, ending.tags))

    def _take(self) -> list[Point]:
        """The next batch, as soon as it is full, a while has passed or the run ends; empty: nothing will follow."""
        with self._state:
            self._state.wait_for(lambda: self._queue or self._closing)
            self._state.wait_for(lambda: self._closing or len(self._queue) >= MAX_METRICS, timeout=_GATHER)
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

        Once the run is over, people wait: a tracker that answered before is tried until the deadline, one that never
        did gets a second attempt and no more.
        """
        with self._state:
            if not self._closing and attempt < len(_BACK_OFF):
                self._state.wait_for(lambda: self._off or self._closing, timeout=_BACK_OFF[attempt])
            elif self._closing and (self._reached or attempt == 0):
                self._state.wait_for(lambda: self._off, timeout=_LAST_BACK_OFF)
            else:
                return False
            return not self._off and time.monotonic() < self._deadline

    def _switch_off(self, error: BaseException) -> None:
        with self._state:
            if self._off:
                return
            self._off = True
            self._error = self._error or _describe(error)
            self._dropped += self._in_flight + len(self._queue)
            self._queue.clear()
            self._in_flight = 0
            self._state.notify_all()
        logging.getLogger(__name__).warning(
            "MLflow tracking is off for the rest of this run, which goes on without it: %s", self._error
        )


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "mlflow":
        return "MLflow is not installed: pip install mlflow, or set run.track=false"
    return _without_password(f"{type(error).__name__}: {error}")[:600]


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://***@", text)
