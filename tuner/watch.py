"""What the driver looks after while Ray Tune works: trials that die or fall silent, and the end of the sweep's time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from tuner.journal import Journal, TrialRecord
from tuner.schedule import JournalScheduler

log = logging.getLogger("tuner")
START_SECONDS = 600.0  # that a trial's process has to come up and load torch, also where less silence is allowed
DIED = "its process died: killed, out of memory, or its node is gone"


def ended_for_memory(error: BaseException) -> bool:
    """Whether Tune gave up because Ray ended a trial to free memory, of which Tune makes nothing."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ray.exceptions.OutOfMemoryError) or "OutOfMemoryError" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


class Watch(Callback):
    """Writes down trials whose process died, to be tried again or given up, and ends those that say nothing."""

    def __init__(self, journal: Journal, scheduler: JournalScheduler, searcher: Searcher):
        self._journal, self._scheduler, self._searcher = journal, scheduler, searcher
        self._silent: dict[int, float] = {}  # seconds after which a trial was ended
        self._lost: set[str] = set()  # Tune's names of trials that were dealt with
        self.trouble: str | None = None  # of a kind that other trials would meet too, such as a full disk

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._scheduler.heard[trial.config["number"]] = time.monotonic()
        self._scheduler.starting.add(trial.config["number"])

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        for trial in trials:
            if trial.status == Trial.ERROR and trial.trial_id not in self._lost:
                # Tune could not give a used process to this trial, and tells nobody
                self._searcher.on_trial_complete(trial.trial_id, error=True)
                self.on_trial_error(iteration, trials, trial)
            elif trial.status in (Trial.RUNNING, Trial.PENDING) and trial.temporary_state.ray_actor is not None:
                self._end_if_silent(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._lost.add(trial.trial_id)
        self._lose(self._journal.trials[trial.config["number"]], DIED)

    def lost_all(self, error: str) -> None:
        """Every trial that ran has lost its process."""
        for record in list(self._journal.trials.values()):
            if record.state == "running":
                self._lose(record, error)

    def _end_if_silent(self, trial: Trial) -> None:
        number, limit = trial.config["number"], 60 * self._journal.spec.silence_minutes
        if number not in self._scheduler.heard:  # its process is being prepared
            self._scheduler.heard[number] = time.monotonic()
            self._scheduler.starting.add(number)
        if number in self._scheduler.starting:
            limit = max(limit, START_SECONDS)
        if number not in self._silent and time.monotonic() - self._scheduler.heard[number] > limit:
            self._silent[number] = limit
            log.warning("trial %d has said nothing for %g minutes: ending it", number, limit / 60)
            ray.kill(trial.temporary_state.ray_actor)  # also where its process is stopped and hears no request

    def _lose(self, record: TrialRecord, error: str) -> None:
        """Try again, or give up."""
        if record.is_final:
            return
        words = self._scheduler.last_words.pop(record.number, None)
        if record.number in self._silent:
            self._give_up(record, f"it said nothing for {self._silent[record.number] / 60:g} minutes and was ended")
        elif record.retries < self._journal.spec.retries:
            self._journal.record("retry", number=record.number, error=words or error)
        elif words is not None:  # not the trial's fault, so it stays to be run
            self.trouble = f"trial {record.number}: {words}"
        else:
            self._give_up(record, error)

    def _give_up(self, record: TrialRecord, error: str) -> None:
        self._journal.record(
            "done", number=record.number, state="failed", value=None, values=[], epoch=record.epoch,
            seconds=record.seconds, error=error,
        )  # fmt: skip


class EndOfSweep(Stopper):
    """Ends all trials when someone asks for it, when the time is over, or when all would meet the same trouble."""

    def __init__(self, journal: Journal, requested: Callable[[], bool], watch: Watch):
        self._journal, self._requested, self._watch = journal, requested, watch

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._requested() or self._journal.out_of_time or self._watch.trouble is not None
