"""Tells MLflow about a sweep: a parent run, and nested in it one run per trial, all from the driver's process.

Trial processes never load MLflow, which would cost each of them seconds and 200 MB. The driver hands every line of the
journal to `tell`, after a restart those of the past first; what MLflow has already is not told again.

    tracker = SweepTracker(directory, spec)
    for event in journal.events:
        tracker.tell(event)
    journal.listeners.append(tracker.tell)
    …
    tracker.end([directory / "results.csv"], timeout=60)

Nothing but `end` waits. A trial that runs has a thread; of those that are over and not yet told in full, only a few
have one at a time, since all that is to be told of them is on disk. Once the parent's tracking is off, that of all
trials is, with one warning.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.errors import Infrastructure
from trainer.process.home import nml_home
from trainer.tracking import tracking_uri
from trainer.tracking_run import About, ended_as
from trainer.tracking_thread import BackgroundRun, describe
from tuner.config import SweepSpec, sweep_hash
from tuner.journal import FINAL, Event, trial_directory
from tuner.tracking_trial import TrackedTrial

_SPARE = 4  # threads for trials that are over
_POLL = 0.05  # seconds between looks, at the end
_EXIT_TIMEOUT = 5.0  # seconds the interpreter waits for a sweep that did not come to its end


class SweepTracker:
    """Reports one sweep to MLflow. Use it from one thread.

    Args:
        directory: of the sweep; tracking.json there and in each trial's directory keep the runs' ids.
        uri: where MLflow is; none: `tracking_uri(home)`.
        home: where the default database and the artifacts of any bare database are; none: `nml_home()`.
    """

    def __init__(self, directory: Path, spec: SweepSpec, *, uri: str | None = None, home: Path | None = None) -> None:
        self._directory, self._spec, self._hash = directory, spec, sweep_hash(spec)
        self._home = (home or nml_home()).expanduser().resolve()
        self._uri = uri or tracking_uri(self._home)
        self._first_warning = threading.Lock()  # taken by whoever warns, and never given back
        self._parent = BackgroundRun(uri=self._uri, home=self._home, warn=self._warn)
        self._has_begun = self._has_ended = False
        self._tags: dict[str, str] = {}  # of the parent and of each trial
        self._trials: dict[int, TrackedTrial] = {}  # those of which MLflow does not know all
        self._told = 0  # trials of which it does
        self._done: Counter[str] = Counter()  # by state
        self._best: dict[str, float] = {}  # by state
        self._status, self._closing_tags = "KILLED", {"state": "interrupted"}
        self._deadline: float | None = None
        self._sent = self._dropped = 0  # points of trials that have no thread any more
        self._error: str | None = None

    def tell(self, event: Event) -> None:
        """Take a line of the journal; never raises, never waits for MLflow."""
        if self._has_ended:
            return
        try:
            self._take(event)
        except Exception as error:
            self._error = self._error or describe(error)
            self._warn(f"part of the sweep is not told to MLflow: {self._error}")

    def end(self, files: Sequence[Path], timeout: float) -> None:
        """Upload files of the sweep's directory, close all runs as the journal left them; waits `timeout` s at most."""
        atexit.unregister(self._at_exit)
        if self._has_ended or not self._has_begun:
            return
        self._has_ended, self._deadline = True, time.monotonic() + timeout
        present = [file for file in files if file.is_file()]
        resumable = self._status == "KILLED"
        self._parent.close(self._status, tags=self._closing_tags, files=present, final=not resumable)
        self._parent.hurry(timeout)
        for trial in self._trials.values():
            trial.interrupt()
            if trial.run is not None:
                trial.run.hurry(timeout)
        try:
            while (self._proceed() or not self._parent.is_over) and time.monotonic() < self._deadline:
                time.sleep(_POLL)
        except Exception as error:
            self._error = self._error or describe(error)
        for run in [self._parent, *(trial.run for trial in self._trials.values() if trial.run is not None)]:
            run.join(0)

    def summary(self) -> dict[str, Any]:
        """Whether tracking still works, the parent's MLflow run, the first error, metric points sent and not sent, and
        how many trials are done of which MLflow does not know all."""
        parent = self._parent.summary()
        runs = [trial.run.summary() for trial in self._trials.values() if trial.run is not None]
        errors = [parent["error"], self._error, *(run["error"] for run in runs)]
        return {
            "enabled": parent["enabled"],
            "run_id": parent["run_id"],
            "experiment": self._spec.base.run.experiment,
            "error": next((error for error in errors if error), None),
            "dropped": self._dropped + sum(run["dropped"] for run in [parent, *runs]),
            "sent": self._sent + sum(run["sent"] for run in [parent, *runs]),
            "missing": max(0, self._done.total() - self._told),
        }

    def _take(self, event: Event) -> None:
        if not self._has_begun:
            self._begin(event)
        number = event.get("number")
        match event["type"]:
            case "trial":
                self._add(event)
            case "done":
                self._count(event)
            case "start" | "resume":
                self._status, self._closing_tags = "KILLED", {"state": "interrupted"}
            case "cancelled":
                error = "Cancelled: stopped on request; a resume goes on from there"
                self._status, self._closing_tags = "KILLED", {"state": "cancelled", "error": error}
            case "end":
                self._status = "FINISHED" if event["state"] == "succeeded" else "FAILED"
                best = {} if event["best"] is None else {"best_trial": str(event["best"])}
                self._closing_tags = {"state": event["state"], **best}
        for trial in self._trials.values() if number is None else ():
            trial.is_running = False  # a start, resume or end: what ran then runs no more
        if number in self._trials:
            self._trials[number].tell(event)
            self._trials[number].feed()
        self._proceed()

    def _begin(self, event: Event) -> None:
        self._has_begun = True
        spec, base = self._spec, self._spec.base
        self._tags = {
            "sweep_hash": self._hash, "dataset": base.data.name, "method": base.method, "preset": base.preset or "",
            "protocol": base.evaluation.protocol, "version": str(event.get("version", "")),
        }  # fmt: skip
        space = {path: json.dumps(what.model_dump(mode="json")) for path, what in spec.dimensions().items()}
        graph = {"num_nodes": event["nodes"], "num_edges": event["edges"]} if "nodes" in event else {}
        self._parent.begin(
            About(
                directory=self._directory, experiment=base.run.experiment,
                name=base.run.name or f"{base.data.name}-sweep-{self._hash[:8]}",
                params={**spec.model_dump(mode="json"), "space": space, "graph": graph},
                tags={**self._tags, "metric": base.metric.kind, "state": "running"},
            )
        )  # fmt: skip
        atexit.register(self._at_exit)

    def _add(self, event: Event) -> None:
        """Look after a trial, unless an earlier driver has told all of it."""
        number = event["number"]
        if ended_as(trial_directory(self._directory, number)) is not None:
            self._told += 1
        elif self._is_on():
            self._trials[number] = TrackedTrial(self._directory, self._spec, event, self._tags)

    def _count(self, event: Event) -> None:
        """The parent's curves, by how many trials are done; the best is chosen as tuner.results does it."""
        state, value = event["state"], event["value"]
        self._done[state] += 1
        if value is not None:
            self._best[state] = max(self._best.get(state, value), value)
        metrics = {f"trials_{name}": float(self._done[name]) for name in FINAL}
        best = self._best.get("finished", self._best.get("ended"))
        if best is not None:
            metrics["best_objective"] = best
        self._parent.log(metrics, self._done.total(), at=event["time"])

    def _proceed(self) -> bool:
        """Give threads to trials that need one, take them from those that do not; whether something is left to do."""
        if not self._is_on():
            for trial in self._trials.values():
                if trial.run is not None:
                    trial.run.switch_off(Infrastructure("the sweep itself is not tracked any more"))
                    self._retire(trial)
            self._trials.clear()  # bounded memory, whatever the sweep still does
            return False
        for trial in list(self._trials.values()):
            if trial.run is not None and trial.run.is_over:
                self._retire(trial)
                del self._trials[trial.number]
            elif trial.is_over and not trial.has_begun:
                del self._trials[trial.number]
            elif trial.is_over:
                trial.feed()
        running = sum(trial.is_running for trial in self._trials.values())
        live = sum(trial.run is not None for trial in self._trials.values())
        without = [trial for trial in self._trials.values() if trial.has_begun and trial.run is None]
        for trial in sorted(without, key=lambda trial: not trial.is_running)[: max(0, running + _SPARE - live)]:
            self._start(trial)
        return any(trial.has_begun for trial in self._trials.values())

    def _start(self, trial: TrackedTrial) -> None:
        def warn(message: str) -> None:
            if self._is_on():  # else the parent has warned, or is about to
                self._warn(f"trial {trial.number}: {message}")

        trial.begin(BackgroundRun(uri=self._uri, home=self._home, warn=warn), self._parent_id)
        if trial.run is not None and self._deadline is not None:
            trial.run.hurry(max(0.0, self._deadline - time.monotonic()))
        trial.feed()

    def _retire(self, trial: TrackedTrial) -> None:
        assert trial.run is not None
        summary = trial.run.summary()
        self._sent, self._dropped = self._sent + summary["sent"], self._dropped + summary["dropped"]
        if self._is_on():  # else its error is only what came of the parent's
            self._error = self._error or summary["error"]
        self._told += trial.is_final and summary["enabled"]

    def _parent_id(self) -> str | None:
        """For the trials' threads: None while the parent's is on its way to the server."""
        parent = self._parent.summary()
        if not parent["enabled"]:
            raise Infrastructure("the sweep itself is not tracked")
        run_id: str | None = parent["run_id"]
        return run_id

    def _is_on(self) -> bool:
        return bool(self._parent.summary()["enabled"])

    def _warn(self, message: str) -> None:
        if self._first_warning.acquire(blocking=False):
            logging.getLogger(__name__).warning("%s", message)

    def _at_exit(self) -> None:
        # A daemon thread that is importing or writing while the interpreter is taken down can abort the process.
        self.end((), _EXIT_TIMEOUT)
