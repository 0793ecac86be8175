"""What the driver looks after while Ray Tune works: trials that die or fall silent, and the end of the sweep's time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial

from tuner.journal import Journal, TrialRecord
from tuner.schedule import JournalScheduler

log = logging.getLogger("tuner")
DIED = "its process died: killed, out of memory, or its node is gone"


def out_of_time(journal: Journal) -> bool:
    """Whether the sweep's budget of wall-clock time is used up."""
    budget = journal.spec.budget_minutes
    return budget is not None and journal.elapsed >= 60 * budget


class EndOfSweep(Stopper):
    """Ends all trials when someone asks for it, or when the time is over."""

    def __init__(self, journal: Journal, requested: Callable[[], bool]):
        self._journal, self._requested = journal, requested

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._requested() or out_of_time(self._journal)


class Watch(Callback):
    """Writes down trials whose process died, to be tried again or given up, and ends those that say nothing."""

    def __init__(self, journal: Journal, scheduler: JournalScheduler):
        self._journal, self._scheduler = journal, scheduler
        self._silent: set[int] = set()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._scheduler.heard[trial.config["number"]] = time.monotonic()

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        limit = 60 * self._journal.spec.silence_minutes
        for trial in trials:
            number, actor = trial.config["number"], trial.temporary_state.ray_actor
            if trial.status != Trial.RUNNING or actor is None or number in self._silent:
                continue
            if time.monotonic() - self._scheduler.heard[number] > limit:
                self._silent.add(number)
                log.warning("trial %d has said nothing for %g minutes: ending it", number, limit / 60)
                ray.kill(actor)  # also where its process is stopped and hears no request

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        record = self._journal.trials[trial.config["number"]]
        if record.is_final:
            return
        if record.number in self._silent:
            self._give_up(record, f"it said nothing for {self._journal.spec.silence_minutes:g} minutes and was ended")
            return
        error = self._scheduler.last_words.pop(record.number, DIED)
        if record.retries < self._journal.spec.retries:
            self._journal.record("retry", number=record.number, error=error)
        else:
            self._give_up(record, error)

    def _give_up(self, record: TrialRecord, error: str) -> None:
        self._journal.record(
            "done", number=record.number, state="failed", value=None, values=[], epoch=record.epoch,
            seconds=record.seconds, error=error,
        )  # fmt: skip
