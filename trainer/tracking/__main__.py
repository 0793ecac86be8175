"""`python -m trainer.tracking DIRECTORY`: send MLflow what it does not know yet of a run or sweep, and close it there.

For one whose process was killed, or during whose end MLflow was away. One that is closed already, or that was not
tracked, stays as it is. Always exits with code 0: training does not depend on MLflow, nor does who calls this.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from trainer.tracking.mlflow_run import State
from trainer.tracking.source import Ending
from trainer.tracking.tracker import Tracker

log = logging.getLogger("trainer.tracking")


def main(arguments: list[str] | None = None) -> int:
    """Parse, catch up, and return 0."""
    parser = argparse.ArgumentParser(prog="python -m trainer.tracking", description=__doc__)
    parser.add_argument("directory", type=Path, help="run or sweep directory")
    parser.add_argument("--status", choices=["FAILED", "KILLED"], help="how it ended, if its journal does not say")
    parser.add_argument("--reason", default="the process was killed", help="for the tag `error`, with --status")
    parser.add_argument("--seconds", type=float, default=60.0, help="time it may take")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    state = State(options.directory)
    if state.get("key") is None or state.get("status") is not None:
        log.info("%s: nothing to send: it is closed in MLflow, or was never tracked", options.directory)
        return 0
    tracker = Tracker()
    tracker.follow(options.directory)
    tracker.finish(options.seconds, Ending(options.status, {"error": options.reason}) if options.status else None)
    if tracker.error is None:
        log.info("%s: MLflow has everything", options.directory)
    if tracker.is_alive:
        logging.shutdown()
        os._exit(0)  # the thread is deep in MLflow, and the interpreter would wait or crash over it
    return 0


if __name__ == "__main__":
    sys.exit(main())
