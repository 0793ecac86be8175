"""Tells MLflow about a run, in the background: a tracker outage costs metrics, never training (design section 2).

    tracker = Tracker()                    # MLFLOW_TRACKING_URI, else SQLite below NML_HOME (~/.nml)
    fit(spec, directory, callbacks=[tracker])
    tracker.summary()["error"]             # None, or why points are missing

Only the end of a run waits for the thread that does the telling (trainer.tracking_thread), at most `finish_timeout`.
"""

from __future__ import annotations

import atexit
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.callbacks import Callback, Result, RunInfo
from trainer.errors import Cancelled
from trainer.process.home import nml_home
from trainer.tracking_run import About, note_error
from trainer.tracking_thread import BackgroundRun, describe, without_password

_SERVER_TIMEOUT = 30.0  # seconds that the end of a run waits
_DATABASE_TIMEOUT = 120.0  # the same for a database of our own: the first run makes MLflow's tables, on whatever disk
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
        return f"open {without_password(uri)}"
    return f"mlflow ui --backend-store-uri {shlex.quote(without_password(uri))}"


class Tracker(BackgroundRun, Callback):
    """Reports one run to MLflow; no method raises or blocks because of the tracker, see the module.

    Args:
        uri: where MLflow is; none: `tracking_uri(home)`.
        home: where the default database and the artifacts of any bare database are; none: `nml_home()`.
        finish_timeout: seconds that `on_end` and `on_failure` wait at most for what is still to be sent; none: 30, and
            120 for a database of our own.
        capacity: metric points kept while the tracker is slow; an epoch that does not fit is dropped and counted.
    """

    def __init__(
        self,
        *,
        uri: str | None = None,
        home: Path | None = None,
        finish_timeout: float | None = None,
        capacity: int = 100_000,
    ) -> None:
        home = (home or nml_home()).expanduser().resolve()
        uri = uri or tracking_uri(home)
        super().__init__(uri=uri, home=home, capacity=capacity)
        usual = _DATABASE_TIMEOUT if uri.startswith("sqlite:") else _SERVER_TIMEOUT
        self._finish_timeout = usual if finish_timeout is None else finish_timeout
        self._directory: Path | None = None  # of the run, once it has started

    def on_start(self, run: RunInfo) -> None:
        """Begin; the interpreter, should it exit before the run said how it ended, waits a little."""
        if self._thread is None:
            atexit.register(self._at_exit)
        self._directory = run.directory
        self.begin(_about(run))

    def on_epoch(self, event: Mapping[str, Any]) -> None:
        """Queue the epoch's numbers."""
        self.log(event.get("metrics"), event.get("epoch", 0))

    def on_end(self, result: Result) -> None:
        """Send final figures and small files, then close the run as FINISHED."""
        files = [path for pattern in _ARTIFACTS for path in sorted(result.directory.glob(pattern))]
        self.close("FINISHED", metrics=result.metrics, step=result.epochs, files=files, wait=self._finish_timeout)

    def on_failure(self, error: BaseException) -> None:
        """Close the run as FAILED, or KILLED if it can be resumed; the reason is its tag `error`."""
        resumable = isinstance(error, Cancelled | KeyboardInterrupt)
        status, tags = "KILLED" if resumable else "FAILED", {"error": describe(error)}
        self.close(status, tags=tags, final=not resumable, wait=self._finish_timeout)

    def join(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for what is still to be sent, then switch tracking off."""
        super().join(timeout)
        atexit.unregister(self._at_exit)

    def note_error(self) -> None:
        """Once the run is over, keep in its tracking.json why points are missing, if any are. Never raises."""
        if self._directory is not None:
            with suppress(OSError):
                note_error(self._directory, self.summary()["error"])

    def _at_exit(self) -> None:
        # A daemon thread that is importing or writing while the interpreter is taken down can abort the process.
        self._finish(None)
        self.join(_EXIT_TIMEOUT)


def _about(run: RunInfo) -> About:
    graph = {"num_nodes": run.num_nodes, "num_edges": run.num_edges}
    return About(
        directory=run.directory,
        experiment=run.spec.run.experiment,
        name=run.spec.run.name or f"{run.spec.data.name}-{run.spec_hash[:8]}",
        params={**run.spec.model_dump(mode="json"), "graph": graph},
        tags={**run.tags, "spec_hash": run.spec_hash},
    )
