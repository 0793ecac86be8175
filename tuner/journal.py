"""The truth about a sweep: every trial, report and decision as a line of events.jsonl, on disk before it is acted on.

Reading the lines in order gives back all that the sweep knew: which settings were tried, what each reported when, and
what was decided. So searcher and scheduler keep no files of their own, and a kill at any moment loses nothing.

    {"type": "start" | "resume", "spec_hash": …, "objective": …, "concurrency": …}
    {"type": "trial", "number": 3, "origin": "start" | "search", "changes": {"method.temperature": 0.4}}
    {"type": "running", "number": 3, "host": …, "pid": …}
    {"type": "retry", "number": 3, "error": …}: its process died; it waits for another, and its checkpoint
    {"type": "report", "number": 3, "run": 0, "epoch": 25, "value": 0.71, "figures": {…}, "seconds": …,
     "decision": "continue" | "stop"}
    {"type": "done", "number": 3, "state": …, "value": …, "values": […], "epoch": …, "seconds": …, "error": …}
    {"type": "cancelled", "error": …} or {"type": "end", "state": "succeeded" | "failed", "best": 3, "value": …,
     "out_of_time": …}

Every line has "time", "elapsed": seconds the sweep has run, interruptions not counted, and "spent": those of them that
count against budget_minutes, which are all but what passes at each start until a trial runs (Ray, torch).
"""

from __future__ import annotations

import fcntl
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from trainer.errors import Infrastructure, InvalidInput
from trainer.files.atomic import sync, write_json
from trainer.files.documents import read_document
from trainer.files.journal import append, mend, parsed, read_journal
from tuner.config import SweepSpec, parse_sweep, sweep_hash
from tuner.space import Value

State = Literal["waiting", "running", "finished", "stopped", "failed", "ended"]
FINAL: tuple[State, ...] = ("finished", "stopped", "failed", "ended")
Event = dict[str, Any]
START_SECONDS = 600.0  # of each start, at most, that do not count: the wait for a full cluster has an end


@dataclass(frozen=True)
class Report:
    """What a trial said after an epoch, and what it was told."""

    run: int  # which of the trial's seeds
    epoch: int
    value: float
    figures: dict[str, float]
    decision: Literal["continue", "stop"]


@dataclass
class TrialRecord:
    """One setting and what became of it.

    `finished` trained to its end, `stopped` was cut short by the scheduler, `failed` died or became non-finite, `ended`
    was running when the sweep's time was over.
    """

    number: int
    origin: Literal["start", "search"]
    changes: dict[str, Value]
    state: State = "waiting"
    reports: list[Report] = field(default_factory=list)
    value: float | None = None  # mean over the runs, once final
    values: list[float] = field(default_factory=list)  # of each run
    epoch: int = 0  # of the last report
    seconds: float = 0.0  # spent training, in all attempts that reported
    error: str | None = None
    retries: int = 0

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def last_value(self) -> float | None:
        """The value if there is one, else that of the last report."""
        return self.value if self.value is not None or not self.reports else self.reports[-1].value

    def reported(self, run: int, epoch: int) -> Report | None:
        """An earlier report on that epoch: a resumed trial repeats some."""
        return next((report for report in self.reports if (report.run, report.epoch) == (run, epoch)), None)


class Journal:
    """A sweep directory, opened by one driver at a time; the lock is gone with the process, even after kill -9."""

    def __init__(self, path: Path, spec: SweepSpec, lock: IO[str], events: list[Event]):
        self.path, self.spec, self._lock = path, spec, lock
        self.trials: dict[int, TrialRecord] = {}
        self.events = list(events)  # all lines, those of the past first
        self._elapsed_before = max((event.get("elapsed", 0.0) for event in events), default=0.0)
        spent = (event["spent"] if "spent" in event else event.get("elapsed", 0.0) for event in events)
        self._spent_before = max(spent, default=0.0)
        self._opened = time.monotonic()
        self._first_ran: float | None = None  # seconds after that, once a trial runs
        self._file = path / "events.jsonl"
        for event in events:
            apply(self.trials, event)

    @classmethod
    def open(cls, path: Path, spec: SweepSpec, *, patience: float = 0.0) -> Journal:
        """Claim the directory for this sweep; for `patience` seconds, wait for a driver that is about to end.

        Raises:
            InvalidInput: the directory holds something else.
            Infrastructure: another process runs the sweep, or the directory cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / ".lock").open("a")
        except OSError as error:
            raise Infrastructure(f"{path}: cannot write a sweep there ({error}). Choose another --out.") from error
        deadline = time.monotonic() + patience
        while not _locked(lock):
            if time.monotonic() >= deadline:
                lock.close()
                raise Infrastructure(f"{path}: another process runs a sweep there. Wait for it, or end it.")
            time.sleep(0.1)
        try:
            _check_owner(path, spec)
            write_json(path / "spec.json", spec.model_dump(mode="json"))
            return cls(path, spec, lock, _opened(path / "events.jsonl"))
        except BaseException:
            lock.close()
            raise

    @property
    def has_begun(self) -> bool:
        """Whether trials were ever started here."""
        return any(event["type"] == "start" for event in self.events)

    @property
    def has_news(self) -> bool:
        """Whether something was written after the end of the sweep, or it never came to one."""
        return self.events[-1]["type"] != "end" if self.events else True

    @property
    def elapsed(self) -> float:
        """Seconds the sweep has run, before and after interruptions."""
        return self._elapsed_before + time.monotonic() - self._opened

    @property
    def spent(self) -> float:
        """Seconds that count against the budget: those elapsed, but for START_SECONDS or less of each start."""
        now = time.monotonic() - self._opened
        return self._spent_before + now - min(now if self._first_ran is None else self._first_ran, START_SECONDS)

    @property
    def out_of_time(self) -> bool:
        """Whether the sweep's budget of wall-clock time is used up."""
        return self.spec.budget_minutes is not None and self.spent >= 60 * self.spec.budget_minutes

    def record(self, kind: str, **fields: Any) -> Event:
        """Write a line, on disk when this returns, and bring the trials up to date."""
        if kind == "running" and self._first_ran is None:
            self._first_ran = time.monotonic() - self._opened
        times = {"time": round(time.time(), 3), "elapsed": round(self.elapsed, 3), "spent": round(self.spent, 3)}
        event = {"type": kind, **times, **fields}
        event = json.loads(json.dumps(event, allow_nan=False))  # what a restart would read: lists for tuples
        append(self._file, event, durable=True)
        self.events.append(event)
        apply(self.trials, event)
        return event

    def __deepcopy__(self, memo: object) -> Journal:
        return self  # there is one truth, whatever Ray Tune copies

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return Path, (str(self.path),)  # Ray Tune pickles its parts for a restart that goes through us instead

    def close(self) -> None:
        self._lock.close()


def apply(trials: dict[int, TrialRecord], event: Event) -> None:
    """Bring the trials up to date with one line of the journal."""
    match event["type"]:
        case "running" | "report" | "done" | "retry" if event["number"] not in trials:
            pass  # someone has changed the file
        case "trial":
            number = event["number"]
            trials[number] = TrialRecord(number, event["origin"], event["changes"])
        case "running":
            trials[event["number"]].state = "running"
        case "report":
            trial = trials[event["number"]]
            trial.reports.append(
                Report(event["run"], event["epoch"], event["value"], event["figures"], event["decision"])
            )
            trial.state, trial.epoch, trial.seconds = "running", event["epoch"], event["seconds"]
        case "done":
            trial = trials[event["number"]]
            trial.state, trial.value, trial.values = event["state"], event["value"], event["values"]
            trial.epoch, trial.seconds, trial.error = event["epoch"], event["seconds"], event["error"]
        case "retry":
            trial = trials[event["number"]]
            trial.state, trial.retries = "waiting", trial.retries + 1
        case "start" | "resume" | "cancelled":
            for trial in trials.values():  # what ran then runs no more; what the time cut off goes on with more of it
                if trial.state == "running" or (trial.state == "ended" and event["type"] == "resume"):
                    trial.state, trial.value, trial.error = "waiting", None, None


def read_sweep(path: Path) -> tuple[SweepSpec, dict[int, TrialRecord], list[Event]]:
    """A sweep directory as it is now, also while a sweep runs there.

    Raises:
        InvalidInput: not a sweep directory.
    """
    spec, events = _stored_spec(path), read_journal(path / "events.jsonl")
    trials: dict[int, TrialRecord] = {}
    for event in events:
        apply(trials, event)
    return spec, trials, events


def trial_directory(sweep: Path, number: int) -> Path:
    """Where a trial's run directories lie."""
    return sweep / "trials" / f"{number:04d}"


def run_directory(sweep: Path, number: int, seed: int) -> Path:
    """The run directory of one of a trial's runs, by its run.seed."""
    return trial_directory(sweep, number) / f"seed-{seed}"


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_owner(path: Path, spec: SweepSpec) -> None:
    if not (path / "spec.json").exists():
        names = sorted(
            entry.name
            for entry in path.iterdir()
            if not entry.name.startswith(".ray") and entry.name not in (".lock", "ray.log")
        )
        ours, beginnings = (".lock", "ray.log"), (".ray-", ".spec.json.")  # the last, if killed while writing it
        names = sorted(entry.name for entry in path.iterdir())
        foreign = [name for name in names if name not in ours and not name.startswith(beginnings)]
        if foreign:
            raise InvalidInput(f"{path}: holds other files ({', '.join(foreign[:3])}). Choose an empty --out.")
        return
    stored = _stored_spec(path)
    if sweep_hash(stored) != sweep_hash(spec):
        raise InvalidInput(
            f"{path}: holds another sweep ({sweep_hash(stored)[:12]}, not {sweep_hash(spec)[:12]}). "
            "Go on with its own spec.json, or choose another --out."
        )


def _stored_spec(path: Path) -> SweepSpec:
    if not (path / "spec.json").exists():
        raise InvalidInput(f"{path}: is not a sweep directory (no spec.json). Give the --out of an `nml sweep`.")
    document = read_document(path / "spec.json")
    if not isinstance(document, dict) or "base" not in document:
        raise InvalidInput(f"{path}: is not a sweep directory, its spec.json is not that of a sweep.")
    return parse_sweep(document)


def _opened(file: Path) -> list[Event]:
    """The events so far, of a file that is now there and ends with a complete line.

    Raises:
        InvalidInput: more than the end of the last line is wrong, which no crash does.
    """
    mend(file)
    sync(file.parent)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if parsed(line) is None:
                raise InvalidInput(
                    f"{file}, line {number}: is not an event; someone has changed the file. "
                    "Correct the line, or choose another --out."
                )
    return read_journal(file)
