"""What the service knows of a job's MLflow run, and the process that closes it after a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from service.dispatch.results import read_object

CLOSING_SECONDS = 60.0


def tracking_note(directory: Path) -> dict[str, str]:
    """What trainer.tracking keeps of the MLflow run: `run_id`, `status` once it is closed for good, `error`."""
    return {name: value for name, value in read_object(directory / "tracking.json").items() if isinstance(value, str)}


def is_left_open(directory: Path) -> bool:
    """Whether MLflow may still show the run as running, once its trainer is gone without having said otherwise."""
    note = tracking_note(directory)
    return "key" in note and "status" not in note


def close_in_mlflow(
    directory: Path, *, cancelled: bool, environment: Mapping[str, str], reason: str
) -> subprocess.Popen[bytes]:
    """Start the process that closes what a killed trainer left open; it ends by itself, also if we are killed.

    Raises:
        OSError: no process can be started.
    """
    status = "KILLED" if cancelled else "FAILED"
    command = [sys.executable, "-P", "-m", "trainer.tracking_close", str(directory), status]
    limits = ["--seconds", str(CLOSING_SECONDS), "--reason", reason[:500] or "its process was killed"]
    return subprocess.Popen(
        [*command, *limits], env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
