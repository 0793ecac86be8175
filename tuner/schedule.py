"""The scheduler given to Ray Tune: writes down what trials say, and asks ASHA whether they go on.

Ray's ASHA forgets its rungs when the driver dies. Here it is fed from the journal: after a restart all reports of the
past go through it again, in order, so its rungs are what they were.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from tuner.config import SweepSpec
from tuner.journal import Event, Journal, TrialRecord
from tuner.messages import Message, unpacked
from tuner.space import changed

Decision = Literal["continue", "stop"]


@dataclass(frozen=True)
class _Standin:
    """All that ASHA needs of a trial: a name, which for us is its number. Tune's own names change with a restart."""

    trial_id: int


class Halving:
    """Asynchronous successive halving over the reports of first runs; or no stopping at all."""

    def __init__(self, spec: SweepSpec, history: list[Event] = []):  # noqa: B006 (never written to)
        self._asha: ASHAScheduler | None = None
        self._known: set[int] = set()
        if spec.scheduler.kind == "asha":
            reduction = spec.scheduler.reduction
            last = max(spec.grace, int(spec.max_epochs / reduction))  # to stop a trial near its end saves nothing
            self._asha = ASHAScheduler(
                time_attr="epoch", metric="value", mode="max", max_t=last, grace_period=spec.grace,
                reduction_factor=reduction, stop_last_trials=False,
            )  # fmt: skip
        for event in history:
            if event["type"] == "report":
                self.judge(event["number"], event["run"], event["epoch"], event["value"])

    def judge(self, number: int, run: int, epoch: int, value: float) -> Decision:
        """What a report deserves. Order matters: the cut is where the reports that came before put it."""
        if self._asha is None or run > 0:
            return "continue"
        trial: Any = _Standin(number)
        if number not in self._known:
            self._known.add(number)
            self._asha.on_trial_add(None, trial)
        answer = self._asha.on_trial_result(None, trial, {"epoch": epoch, "value": value})
        return "stop" if answer == TrialScheduler.STOP else "continue"


class JournalScheduler(FIFOScheduler):
    """Every message of a trial ends here; what is decided is on disk before Tune acts on it."""

    def __init__(self, journal: Journal):
        super().__init__()
        self._journal, self._halving = journal, Halving(journal.spec, journal.events)
        self.heard: dict[int, float] = {}  # when each running trial last said something, in time.monotonic()
        self.starting: set[int] = set()  # trials whose process has not said anything yet
        self.last_words: dict[int, str] = {}  # why a trial is about to fail, if it could still say so

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        message, number = unpacked(result), trial.config["number"]
        record = self._journal.trials[number]
        self.heard[number] = time.monotonic()
        self.starting.discard(number)
        if message is None or record.is_final:
            return TrialScheduler.STOP if record.is_final else TrialScheduler.CONTINUE
        match message.pop("kind"):
            case "running":
                self._journal.record("running", number=number, **message)
            case "report":
                return self._report(record, message)
            case "failing":
                self.last_words[number] = message["error"]
            case "final":
                self._finish(record, **message)
        return TrialScheduler.CONTINUE

    def _report(self, record: TrialRecord, message: Message) -> str:
        known = record.reported(message["run"], message["epoch"])
        if known is None:
            decision = self._halving.judge(record.number, message["run"], message["epoch"], message["value"])
            if message["epoch"] >= self._epochs(record):
                decision = "continue"  # it has trained to its end: there is nothing to stop
            self._journal.record("report", number=record.number, **message, decision=decision)
        else:
            decision = known.decision
        if decision == "continue":
            return TrialScheduler.CONTINUE
        settle_stopped(self._journal, record)
        return TrialScheduler.STOP

    def _epochs(self, record: TrialRecord) -> int:
        return changed(self._journal.spec.base, record.changes).optimiser.epochs

    def _finish(
        self, record: TrialRecord, *, state: str, values: list[float], epoch: int, seconds: float, error: str | None
    ) -> None:
        value = sum(values) / len(values) if state == "finished" else None
        self._journal.record(
            "done", number=record.number, state=state, value=value, values=values, epoch=epoch, seconds=seconds,
            error=error,
        )  # fmt: skip


def settle_stopped(journal: Journal, record: TrialRecord) -> None:
    """Close a trial whose last report was answered with stop."""
    last = record.reports[-1]
    journal.record(
        "done", number=record.number, state="stopped", value=last.value, values=[last.value], epoch=last.epoch,
        seconds=record.seconds, error=None,
    )  # fmt: skip
