"""The result of a job, read from its run directory: metrics, figures, whether there are embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.store.records import Kind

_PICTURES = (".png", ".svg", ".html")
_LARGEST = 4_000_000  # bytes of a JSON document that we read whole


def result_of(kind: Kind, directory: Path) -> dict[str, Any]:
    """For the row of a job that succeeded. What is missing or cannot be read is left out."""
    if kind not in ("train", "sweep"):  # the data set or the version says what they made
        return {}
    metrics = read_object(directory / ("metrics.json" if kind == "train" else "results.json"))
    if kind == "sweep":
        metrics = {name: value for name, value in metrics.items() if not isinstance(value, list)}  # not every trial
    figures = sorted(path.name for path in _files(directory / "figures") if path.suffix in _PICTURES)
    embeddings = (directory / "embeddings" / "manifest.json").is_file()
    return {"metrics": metrics, "figures": figures, "embeddings": embeddings}


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object of a run directory; empty if it is missing, too large or unreadable."""
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
