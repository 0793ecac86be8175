"""`python -m trainer.tracking_close RUN_DIR FAILED|KILLED [--reason TEXT]`: tell MLflow that a killed run is over.

For a run directory, or a sweep's with all its trials. What was closed for good stays as it is, and nothing is created.
It takes `--seconds` at most and always ends with exit code 0: like any telling of the tracker, it must not matter.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from pathlib import Path

from trainer.process.home import nml_home
from trainer.tracking import tracking_uri
from trainer.tracking_run import close_run, prepare_environment
from trainer.tracking_thread import describe

log = logging.getLogger("trainer.tracking")


def close_all(directory: Path, status: str, *, reason: str, uri: str, home: Path) -> int:
    """Close the runs of a directory, those of trials first; how many were open. Tracker errors are logged, no more."""
    closed = 0
    for note in (*sorted(directory.glob("trials/*/tracking.json")), directory / "tracking.json"):
        try:
            closed += note.is_file() and close_run(note.parent, status, uri=uri, home=home, reason=reason)
        except Exception as error:
            log.warning("%s: MLflow did not learn that it is over: %s", note.parent, describe(error))
    return closed


def main(arguments: list[str] | None = None) -> int:
    """Parse, close, and return 0."""
    parser = argparse.ArgumentParser(prog="python -m trainer.tracking_close", description=__doc__)
    parser.add_argument("directory", type=Path, help="run or sweep directory")
    parser.add_argument("status", choices=["FAILED", "KILLED"])
    parser.add_argument("--reason", default="its process was killed", help="for the tag `error`")
    parser.add_argument("--seconds", type=float, default=60.0, help="time it may take")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    prepare_environment()
    home = nml_home()
    work = threading.Thread(
        target=close_all, args=(options.directory, options.status), daemon=True,
        kwargs={"reason": options.reason, "uri": tracking_uri(home), "home": home},
    )  # fmt: skip
    work.start()
    work.join(options.seconds)
    if work.is_alive():
        log.warning("%s: MLflow did not answer within %g s", options.directory, options.seconds)
        logging.shutdown()
        os._exit(0)  # the thread is deep in MLflow, and the interpreter would wait or crash over it
    return 0


if __name__ == "__main__":
    sys.exit(main())
