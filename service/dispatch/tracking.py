"""What the service knows of a job's MLflow run, and the process that closes it after a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from service.dispatch.results import read_object
from service.store.records import State

CLOSING_SECONDS = 60.0


def tracking_note(directory: Path) -> dict[str, str]:
    """The fields of tracking.json: `run_id`, `status` once the run is closed for good, `error`."""
    return {name: value for name, value in read_object(directory / "tracking.json").items() if isinstance(value, str)}


def is_left_open(directory: Path) -> bool:
    """Whether MLflow does not know yet how a run ended whose process is gone."""
    note = tracking_note(directory)
    return "key" in note and "status" not in note


def close_in_mlflow(
    directory: Path, state: State, *, environment: Mapping[str, str], reason: str | None
) -> subprocess.Popen[bytes]:
    """Start the process that sends MLflow the rest of a run and closes it; it ends by itself, also if we are killed.

    Args:
        state: how the job ended.

    Raises:
        OSError: no process can be started.
    """
    command = [sys.executable, "-P", "-m", "trainer.tracking", str(directory), "--seconds", str(CLOSING_SECONDS)]
    if state != "succeeded":  # else its journal says so
        status = "KILLED" if state == "cancelled" else "FAILED"
        command += ["--status", status, "--reason", (reason or "")[:500] or state]
    return subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
