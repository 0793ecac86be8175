"""The thread that reads a journal for MLflow. It does all that waits, even MLflow's import."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.callbacks import Callback, Result, RunInfo
from trainer.errors import Cancelled
from trainer.process.home import nml_home
from trainer.tracking.address import describe, tracking_uri
from trainer.tracking.mlflow_run import Server, State, is_transient, prepare_environment
from trainer.tracking.report import RunReport, report_on
from trainer.tracking.source import Ending

log = logging.getLogger("trainer.tracking")
_POLL = 1.0  # seconds between looks at the journal: fast epochs share one request
_BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds between attempts while MLflow is away
_LAST_BACK_OFF = 1.0  # the same once someone waits
_SERVER_TIMEOUT = 30.0  # seconds that the end of a run waits
_DATABASE_TIMEOUT = 120.0  # the same for a database of our own: the first run makes MLflow's tables, on whatever disk
_EXIT_TIMEOUT = 5.0  # seconds the interpreter waits for a thread that nobody has finished


class Tracker(Callback):
    """Reports one run or sweep to MLflow. No method raises because of MLflow, and only `finish` waits.

    As a callback of `fit` it follows that run and finishes with it; else call `follow` and `finish`.

    Args:
        uri: where MLflow is; none: `tracking_uri(home)`.
        home: where the default database and the artifacts of any bare database are; none: `nml_home()`.
        finish_timeout: seconds that the end of a run waits at most; none: 30, and 120 for a database of our own.
    """

    def __init__(self, *, uri: str | None = None, home: Path | None = None, finish_timeout: float | None = None):
        home = (home or nml_home()).expanduser().resolve()
        uri = uri or tracking_uri(home)
        usual = _DATABASE_TIMEOUT if uri.startswith("sqlite:") else _SERVER_TIMEOUT
        self.finish_timeout = usual if finish_timeout is None else finish_timeout
        self._server = Server(uri, home, self._check)
        self._directory = Path()
        self._report: RunReport | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()  # nothing will be added to the journal, and someone waits
        self._abandoned = threading.Event()  # nobody waits any more
        self._deadline = 0.0
        self._fallback: Ending | None = None
        self._error: str | None = None  # the last one; none once MLflow answers again
        self._problem: str | None = None  # the first that concerns only part of what is told
        self._has_warned = threading.Lock()  # taken by whoever warns, and never given back

    def on_start(self, run: RunInfo) -> None:
        self.follow(run.directory)

    def on_end(self, result: Result) -> None:
        self.finish(self.finish_timeout)

    def on_failure(self, error: BaseException) -> None:
        """The journal says why, unless the run was interrupted."""
        tags, resumable = {"error": describe(error)}, isinstance(error, Cancelled | KeyboardInterrupt)
        self.finish(self.finish_timeout, Ending("KILLED", tags, final=False) if resumable else Ending("FAILED", tags))

    def follow(self, directory: Path) -> None:
        """Start the thread, which reads the journal of a run or sweep directory from its beginning."""
        if self._thread is not None:
            return  # the run goes on with another plan
        prepare_environment()
        self._directory = directory
        atexit.register(self._at_exit)
        self._thread = threading.Thread(target=self._work, name="mlflow-tracker", daemon=True)
        self._thread.start()

    def finish(self, timeout: float, fallback: Ending | None = None) -> None:
        """Send the rest and close the run; waits `timeout` seconds at most.

        Args:
            fallback: how the run ended, unless the journal says that it finished or failed.
        """
        if self._thread is None:
            return  # failed before it started: there is nothing to close
        self._fallback, self._deadline = fallback, time.monotonic() + timeout
        self._closing.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._give_up(TimeoutError(f"MLflow did not take everything within {timeout:.3g} s"))
        atexit.unregister(self._at_exit)
        with suppress(OSError):
            State(self._directory).update(error=self.error)

    @property
    def error(self) -> str | None:
        """Why MLflow does not know everything at the moment."""
        return self._error or self._problem

    @property
    def is_alive(self) -> bool:
        """Whether the thread still works, or hangs in MLflow."""
        return self._thread is not None and self._thread.is_alive()

    def summary(self) -> dict[str, Any]:
        """The MLflow run, the metric points sent to it and its trials, and why something is missing."""
        report = self._report
        run_id = report.run.run_id if report and report.run else None
        experiment = report.experiment if report else None
        return {"run_id": run_id, "experiment": experiment, "error": self.error, "sent": self._server.sent}

    def _work(self) -> None:
        try:
            report = self._report = report_on(self._directory, self._server, self._warn)
            attempt = 0  # since MLflow last answered
            while True:
                closing = self._closing.is_set()  # before reading: all that was written is then in the journal
                try:
                    report.catch_up(self._fallback, closing=closing)
                except Exception as error:
                    if not is_transient(error) or (closing and not self._is_worth_waiting(report, attempt)):
                        raise
                    self._error = describe(error)
                    pause = _BACK_OFF[min(attempt, len(_BACK_OFF) - 1)]
                    attempt += 1
                else:
                    self._error, attempt, pause = None, 0, _POLL
                    if closing:
                        return
                (self._abandoned if closing else self._closing).wait(_LAST_BACK_OFF if closing else pause)
        except BaseException as error:
            self._give_up(error)

    def _is_worth_waiting(self, report: RunReport, attempt: int) -> bool:
        """A server that answered before is tried until the deadline, one that never did once more."""
        return (report.run is not None or attempt == 0) and time.monotonic() < self._deadline

    def _check(self) -> None:
        if self._abandoned.is_set():
            raise TimeoutError("nobody waits for MLflow any more")

    def _give_up(self, error: BaseException) -> None:
        if not self._abandoned.is_set():
            self._abandoned.set()
            self._error = describe(error)
            self._warn(error)

    def _warn(self, error: BaseException) -> None:
        self._problem = self._problem or describe(error)
        if self._has_warned.acquire(blocking=False):
            log.warning(
                "MLflow was not told everything (%s); the run itself is not affected. To send the rest later: "
                "python -m trainer.tracking %s", describe(error), self._directory,
            )  # fmt: skip

    def _at_exit(self) -> None:
        # A daemon thread that is importing or writing while the interpreter is taken down can abort the process.
        self._abandoned.set()
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_EXIT_TIMEOUT)
