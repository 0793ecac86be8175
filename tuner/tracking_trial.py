"""One trial on its way to MLflow: what the journal said of it, and the epochs that its run directories hold.

Trials tell the driver only what the scheduler needs; their epochs are read from the files they write, from where the
last look ended. So nothing is kept here that is not on disk, and a trial can be told at any later time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from trainer.config import spec_hash
from trainer.errors import InvalidInput
from trainer.tracking_run import About, flatten
from trainer.tracking_thread import BackgroundRun, without_password
from tuner.config import SweepSpec, trial_spec
from tuner.journal import Event, run_directory, trial_directory

_CHUNK = 65_536  # bytes of a file read at a time
_BACKLOG = 5_000  # metric points given to a thread before we wait for it; some megabytes
_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "ended": "KILLED", "waiting": "KILLED"}


class EpochLog:
    """The epochs in the events.jsonl of a run, each given once.

    A resumed run rewrites the file without some of its last lines. That shows: the last line that was read is not where
    it was. Then the file is read from its beginning, and epochs that were given before are left out.
    """

    def __init__(self, file: Path):
        self._file = file
        self._offset, self._last_line = 0, b""
        self._epoch = 0

    def read(self) -> list[Event]:
        """The next epochs, as many as a chunk of the file holds; empty: there are no more at the moment."""
        epochs: list[Event] = []
        try:
            with self._file.open("rb") as file:
                self._find_place(file)
                whole = True
                while whole and not epochs and (lines := file.readlines(_CHUNK)):
                    whole = lines[-1].endswith(b"\n")  # else it is being written, and left for the next look
                    read = lines if whole else lines[:-1]
                    epochs = [event for line in read if (event := self._new_epoch(line)) is not None]
        except OSError:
            pass  # not there yet, or replaced this very moment on a network disk: there will be another look
        return epochs

    def _find_place(self, file: IO[bytes]) -> None:
        file.seek(self._offset - len(self._last_line))
        if file.read(len(self._last_line)) != self._last_line:
            self._offset, self._last_line = 0, b""
            file.seek(0)

    def _new_epoch(self, line: bytes) -> Event | None:
        self._offset, self._last_line = self._offset + len(line), line
        try:
            event = json.loads(line)
            if event["type"] != "epoch" or event["epoch"] <= self._epoch:
                return None
        except (ValueError, TypeError, KeyError):  # a line that a crash cut off and the next one joined
            return None
        self._epoch = event["epoch"]
        return dict(event)


class TrackedTrial:
    """What is known of a trial that MLflow does not know all about yet; nothing here waits for the tracker.

    Args:
        event: its "trial" line of the journal.
        tags: what all trials of the sweep have in common.
    """

    def __init__(self, sweep: Path, spec: SweepSpec, event: Event, tags: Mapping[str, str]):
        self.number: int = event["number"]
        self.is_running = False  # in the journal's words, whatever MLflow knows
        self.has_begun = False
        self.run: BackgroundRun | None = None
        self._sweep, self._spec, self._changes = sweep, spec, dict(event["changes"])
        self._tags = {**tags, "trial": str(self.number), "origin": event["origin"]}
        seeds = [spec.base.run.seed + run for run in range(spec.seeds)]
        self._prefixes = ["", *(f"seed_{seed}/" for seed in seeds[1:])]
        self._logs = [EpochLog(run_directory(sweep, self.number, seed) / "events.jsonl") for seed in seeds]
        self._reports: deque[Event] = deque()  # not handed on yet
        self._objective: tuple[int, float | None] = 0, None  # last epoch and value that the first run reported
        self._ending: Event | None = None
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self._ending is not None

    @property
    def is_final(self) -> bool:
        """Whether it is over for good, not only for this driver."""
        return self._ending is not None and self._ending["type"] == "done"

    def tell(self, event: Event) -> None:
        """Take a line of the journal about this trial."""
        match event["type"]:
            case "running":
                self.is_running = self.has_begun = True
            case "report":
                self.is_running = self.has_begun = True
                self._reports.append(event)
            case "retry":
                self.is_running = False
            case "done":
                self.is_running, self.has_begun, self._ending = False, True, event

    def interrupt(self) -> None:
        """The sweep ends before the trial did; a resumed sweep goes on with it."""
        if self._ending is None:
            self.is_running, self._ending = False, {"type": "interrupted", "state": "waiting"}

    def begin(self, run: BackgroundRun, parent: Callable[[], str | None]) -> None:
        """From now on tell MLflow, through this thread."""
        params: dict[str, Any] = {}
        tags = {**self._tags, "state": "running"}
        try:
            trained = trial_spec(self._spec, self._changes)
        except InvalidInput:
            pass  # settings that do not go together: the trial fails, and should still be seen
        else:
            params = flatten(trained.model_dump(mode="json"))
            tags |= {"metric": trained.metric.kind, "spec_hash": spec_hash(trained)}
        self.run = run
        run.begin(
            About(
                directory=trial_directory(self._sweep, self.number), experiment=self._spec.base.run.experiment,
                name=f"trial-{self.number:04d}", params=params | self._changes, tags=tags, parent=parent,
            )
        )  # fmt: skip

    def feed(self) -> None:
        """Hand on what is new, as far as the thread keeps up, and after it how the trial ended."""
        if self.run is None or self._closed:
            return
        while self._reports:
            self._report(self.run, self._reports.popleft())
        if self._feed_epochs(self.run) and self._ending is not None:
            self._close(self.run, self._ending)

    def _feed_epochs(self, run: BackgroundRun) -> bool:
        """Whether all that is there was handed on."""
        for prefix, log in zip(self._prefixes, self._logs, strict=True):
            while run.backlog < _BACKLOG and (epochs := log.read()):
                for event in epochs:
                    metrics = {f"{prefix}{name}": value for name, value in event.get("metrics", {}).items()}
                    run.log(metrics, event["epoch"], at=event.get("time"))
            if run.backlog >= _BACKLOG:
                return False
        return True

    def _report(self, run: BackgroundRun, event: Event) -> None:
        name = f"{self._prefixes[event['run']]}objective"
        run.log({name: event["value"]}, event["epoch"], at=event["time"])
        if event["run"] == 0:
            self._objective = event["epoch"], event["value"]

    def _close(self, run: BackgroundRun, event: Event) -> None:
        self._closed = True
        tags = {"state": event["state"]}
        if not self.is_final:
            run.close(_STATUS[event["state"]], tags=tags, final=False)
            return
        if event["error"]:
            tags["error"] = without_password(event["error"])[:600]
        epoch, value = self._objective
        if event["value"] is not None and event["value"] != value:
            # The mean over seeds comes after the first one's curve, so that MLflow shows and sorts by it.
            run.log({"objective": event["value"]}, max(epoch, event["epoch"]) + 1, at=event["time"])
        # Not "seconds": that is what each epoch took.
        metrics = {"trial_seconds": event["seconds"], "trial_epochs": event["epoch"]}
        # what the time cut off goes on if the sweep gets more
        final = event["state"] != "ended"
        run.close(_STATUS[event["state"]], metrics=metrics, step=event["epoch"], tags=tags, final=final)
