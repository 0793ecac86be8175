"""A sweep whose trials wait where a test wants them: `python -m tests.tuner.held ROOM` is the driver of `start_held`.

A file beside the sweep directory holds a trial as long as it is there: SWEEP.hold/3-begin keeps trial 3 from opening
its graph, SWEEP.hold/3-report from going on after a report. A held trial lives, says so, and can be stopped or killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.parallel.child import main
from tuner import driver, trial

CALLER = """
import sys
from tuner import sweep
from tuner.__main__ import main
launched = sweep.launched
sweep.launched = lambda module, *rest: launched({"tuner.driver": "tests.tuner.held"}[module], *rest)
sys.exit(main())
"""
run_really = trial.run_trial
train_really = trial.train
epoch_really = trial.Reporter.on_epoch


def hold(sweep: Path, number: int, point: str) -> Path:
    """Hold a trial at `begin` or `report`, until the file that this returns is removed."""
    file = _file(sweep, number, point)
    file.parent.mkdir(exist_ok=True)
    file.touch()
    return file


def run_held(config: Mapping[str, Any]) -> None:
    """What Ray Tune calls in a worker process instead of tuner.trial.run_trial."""
    sweep, number = Path(config["sweep"]), config["number"]

    def on_epoch(reporter: Any, event: Mapping[str, Any]) -> None:
        epoch_really(reporter, event)
        if event["epoch"] % reporter._spec.every == 0:
            _wait(_file(sweep, number, "report"), reporter._send)

    def train(*arguments: Any) -> None:
        _wait(_file(sweep, number, "begin"), arguments[-1])
        train_really(*arguments)

    trial.Reporter.on_epoch, trial.train = on_epoch, train  # type: ignore[method-assign]
    run_really(config)


def _file(sweep: Path, number: int, point: str) -> Path:
    return sweep.with_suffix(".hold") / f"{number}-{point}"


def _wait(file: Path, send: trial.Send) -> None:
    while file.exists():
        send(trial.packed("beat"))
        time.sleep(0.2)


if __name__ == "__main__":
    from tests.tuner import held  # by its name, under which workers find it

    trial.run_trial = held.run_held
    main(Path(sys.argv[1]), driver.work)
