"""Run directories for trackers: written by hand, as `fit` would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.config import TrainSpec, spec_hash
from trainer.files.atomic import write_json
from trainer.run.directory import RunDirectory


class HandMadeRun:
    """A run whose trainer is the test; made again for the same directory, it resumes after `epoch` epochs."""

    def __init__(self, path: Path, *, epoch: int = 0, **sections: Any) -> None:
        self.path, self.spec = path, TrainSpec.model_validate(sections)
        resumes = (path / "events.jsonl").exists()
        self.directory = RunDirectory.open(path, self.spec, resume=True)
        if resumes:
            self.directory.rewind(epoch)
        self.directory.record(
            "resume" if resumes else "start", epoch=epoch, nodes=100, edges=400,
            spec_hash=spec_hash(self.spec), tags={"dataset": "digits", "seed": "0"},
        )  # fmt: skip

    def epochs(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.epoch(number, {"loss": 1 / number, "kl": 0.1 * number})

    def epoch(self, number: int, metrics: dict[str, Any]) -> None:
        self.directory.record("epoch", epoch=number, metrics=metrics)

    def cancel(self, epoch: int) -> None:
        self.directory.record("cancelled", epoch=epoch)
        self.directory.close()

    def fail(self, kind: str, message: str) -> None:
        self.directory.record("failed", kind=kind, message=message)
        self.directory.close()

    def end(self, epoch: int, **metrics: Any) -> None:
        write_json(self.path / "metrics.json", metrics)
        self.directory.record("end", epoch=epoch, stopped_early=False)
        self.directory.close()
