"""What a run leaves in its directory, as far as the service keeps it: figures, results, and its place in MLflow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.store.records import Kind

CLOSING_SECONDS = 60.0
_PICTURES = (".png", ".svg", ".html")
_LARGEST = 4_000_000  # bytes of a JSON document that we read whole


def result_of(kind: Kind, directory: Path) -> dict[str, Any]:
    """For the row of a job that succeeded. What is missing or cannot be read is left out."""
    if kind not in ("train", "sweep"):  # what they made is told by the data set, or the version
        return {}
    metrics = _document(directory / ("metrics.json" if kind == "train" else "results.json"))
    if kind == "sweep":
        metrics = {name: value for name, value in metrics.items() if not isinstance(value, list)}  # not every trial
    figures = sorted(path.name for path in _files(directory / "figures") if path.suffix in _PICTURES)
    embeddings = (directory / "embeddings" / "manifest.json").is_file()
    return {"metrics": metrics, "figures": figures, "embeddings": embeddings}


def tracking_note(directory: Path) -> dict[str, str]:
    """What trainer.tracking keeps of the MLflow run: `run_id`, `status` once it is closed for good, `error`."""
    return {name: value for name, value in _document(directory / "tracking.json").items() if isinstance(value, str)}


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


def _document(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST:
            return {}
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except OSError:
        return []
