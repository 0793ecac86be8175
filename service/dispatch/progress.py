"""How far a job is, from its events: what a progress bar and a status page show.

    training  {"phase": "train", "epoch": 7, "epochs": 100, "share": 0.07, "epochs_per_second": 2.1, "eta_seconds": 44,
               "loss": 1.3}; phases after the last epoch are named, with "done" and "total" where they are known
    sweep     {"phase": "search", "trials": 20, "started": 8, "running": 2, "finished": 5, "stopped": 1, "failed": 0,
               "best": 3, "best_value": 0.81, "share": 0.3, "eta_seconds": 900}

Both start from what the job's row shows and are given the events after that, in order. Pure: no files, no database.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Any

from tuner.journal import FINAL, TrialRecord, apply
from tuner.results import best_trial

_PACE_OVER = 30  # epochs


class RunProgress:
    """Of a training run. `document` and `metrics` are what the job's row shows."""

    def __init__(self, spec: dict[str, Any], document: dict[str, Any], metrics: dict[str, Any]):
        self.document, self.metrics = dict(document), dict(metrics)
        optimiser = spec.get("optimiser")
        epochs = optimiser.get("epochs") if isinstance(optimiser, dict) else None
        self._epochs = epochs if isinstance(epochs, int) and epochs > 0 else None
        self._times: deque[tuple[int, float]] = deque(maxlen=_PACE_OVER)  # epochs and when they ended

    def rewind(self, epoch: int, metrics: dict[str, Any]) -> None:
        """The run goes on from the end of this epoch, which had these metrics; later ones are taken back."""
        self._times.clear()
        self.metrics = {"epoch": epoch, **metrics} if epoch else {}
        self._reach(epoch)

    def update(self, event: dict[str, Any]) -> None:
        epoch = event.get("epoch")
        match event.get("type"):
            case "start" | "resume":
                self._times.clear()
                self._reach(epoch)
                self.document |= {"phase": "train", "epochs_per_second": None, "eta_seconds": None}
            case "step" if isinstance(epoch, int) and _is_share(event.get("step"), event.get("steps")):
                self._reach(epoch - 1, event["step"] / event["steps"])
                self.document |= {"phase": "train", "loss": event.get("loss")}
            case "epoch" if isinstance(epoch, int):
                self._end_epoch(epoch, event)
            case "watching":
                self.document |= {"phase": "watch"}
                self._count(event.get("done"), event.get("total"))
            case "phase":
                self.document |= {"phase": str(event.get("name")), "eta_seconds": None, "epochs_per_second": None}
                self._count(None, None)
            case "exported":
                self._count(event.get("done"), event.get("total"))
            case "end":
                self.document |= {"phase": "done", "share": 1.0, "eta_seconds": 0.0, "epochs_per_second": None}
                self._count(None, None)

    def _end_epoch(self, epoch: int, event: dict[str, Any]) -> None:
        metrics = event.get("metrics")
        self.metrics = {"epoch": epoch, **(metrics if isinstance(metrics, dict) else {})}
        self._times.append((epoch, float(event.get("time") or 0.0)))
        self._reach(epoch)
        self._count(None, None)
        rate = self._rate()
        left = None if rate is None or self._epochs is None else max(0, self._epochs - epoch) / rate
        eta = None if left is None else round(left, 1)
        pace = None if rate is None else round(rate, 4)
        loss = self.metrics.get("loss")
        self.document |= {"phase": "train", "epochs_per_second": pace, "eta_seconds": eta, "loss": loss}

    def _rate(self) -> float | None:
        """Epochs per second lately; from one epoch alone, what that took."""
        (first, begun), (last, ended) = self._times[0], self._times[-1]
        if last > first and ended > begun:
            return (last - first) / (ended - begun)
        seconds = self.metrics.get("seconds")
        return 1 / seconds if isinstance(seconds, int | float) and seconds > 0 else None

    def _reach(self, epoch: Any, part: float = 0.0) -> None:
        done = epoch if isinstance(epoch, int) else 0
        self.document |= {"epoch": done, "epochs": self._epochs}
        if self._epochs is not None:
            self.document["share"] = round(min(1.0, (done + part) / self._epochs), 4)

    def _count(self, done: Any, total: Any) -> None:
        self.document = {name: value for name, value in self.document.items() if name not in ("done", "total")}
        if total is not None:
            self.document |= {"done": done, "total": total}


class SweepProgress:
    """Of a sweep."""

    def __init__(self, spec: dict[str, Any], document: dict[str, Any], metrics: dict[str, Any]):
        self._document, self._metrics = dict(document), dict(metrics)
        trials = spec.get("trials")
        self._wanted = trials if isinstance(trials, int) and trials > 0 else 0
        self._trials: dict[int, TrialRecord] = {}
        self._last: dict[str, Any] | None = None  # event that the document does not show yet

    @property
    def document(self) -> dict[str, Any]:
        self._summarise()
        return self._document

    @property
    def metrics(self) -> dict[str, Any]:
        self._summarise()
        return self._metrics

    def rewind(self, epoch: int, metrics: dict[str, Any]) -> None:
        """The journal was written anew, and is read from its beginning."""
        self._trials.clear()

    def update(self, event: dict[str, Any]) -> None:
        try:
            apply(self._trials, event)
        except (KeyError, TypeError, ValueError):
            return  # an event of another version: what is shown may lag, what is stored does not
        self._last = event

    def _summarise(self) -> None:
        """Once for many events: it looks at every trial."""
        event, self._last = self._last, None
        if event is None:
            return
        counts = Counter(trial.state for trial in self._trials.values())
        final = sum(counts[state] for state in FINAL)
        best = best_trial(self._trials)
        total = max(self._wanted, len(self._trials))
        share = final / total if total else 0.0
        elapsed = event.get("elapsed")
        is_over = event.get("type") == "end"
        eta = elapsed / share - elapsed if isinstance(elapsed, int | float) and share else None
        self._document = {
            "phase": "done" if is_over else "search", "trials": total, "started": len(self._trials),
            "running": counts["running"], "finished": counts["finished"] + counts["ended"],
            "stopped": counts["stopped"], "failed": counts["failed"], "best": best.number if best else None,
            "best_value": _value(best), "share": 1.0 if is_over else round(share, 4),
            "eta_seconds": 0.0 if is_over else None if eta is None else round(eta, 1),
        }  # fmt: skip
        if best is not None:
            self._metrics = {"best": best.number, "value": _value(best)}


def _value(best: TrialRecord | None) -> float | None:
    value = None if best is None else best.last_value
    return value if value is not None and math.isfinite(value) else None


def _is_share(step: Any, steps: Any) -> bool:
    return isinstance(step, int | float) and isinstance(steps, int | float) and steps > 0
