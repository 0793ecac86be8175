"""What MLflow is told of a run directory, folded from its journal.

A source reads on where it stopped and never asks MLflow. Everything is on disk, so a new source starts at the first
event and comes to the same points, description and ending.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainer.files.journal import Event, JournalReader
from trainer.tracking.address import without_password

Status = Literal["FINISHED", "FAILED", "KILLED"]


class Point(NamedTuple):
    name: str
    value: float
    milliseconds: int  # since 1970
    step: int


@dataclass(frozen=True)
class Description:
    """What MLflow is told of a run when it begins."""

    experiment: str
    name: str
    params: Mapping[str, Any]  # may be nested; leaves are named by dotted key
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    status: Status
    tags: Mapping[str, str] = field(default_factory=dict)
    final: bool = True  # false: it can be resumed


class Source:
    """One MLflow run: what the journals of a directory, or of runs in it, say as far as they were read."""

    artifacts: tuple[str, ...] = ()  # patterns of files to upload at the end
    interrupted = Ending("KILLED", final=False)  # if the journal does not say how it ended

    def __init__(self, directory: Path, *runs: Path):
        self.directory = directory
        self.description: Description | None = None  # none: it has not begun
        self.ending: Ending | None = None  # none: it runs
        self.points: list[Point] = []  # read and not sent yet; the sender clears them
        self._readers = [JournalReader(run / "events.jsonl") for run in runs or (directory,)]

    def advance(self) -> bool:
        """Read the next part of each journal; whether there is more to be read now."""
        for reader in self._readers:
            for event, _ in reader.read():
                self.take(event)
        return not all(reader.at_end for reader in self._readers)

    def take(self, event: Event) -> None:
        """Bring the fields up to date with one event."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        return [path for pattern in self.artifacts for path in sorted(self.directory.glob(pattern)) if path.is_file()]


class RunSource(Source):
    """A training run."""

    artifacts = ("spec.json", "metrics.json", "embeddings/manifest.json", "figures/*.png")

    def take(self, event: Event) -> None:
        match event["type"]:
            case "start" | "resume":
                self.description, self.ending = _described(self.directory, event), None
            case "epoch":
                self.points += points(event.get("metrics"), event)
            case "cancelled":
                error = f"Cancelled: stopped on request after epoch {event['epoch']}; a resume goes on from there"
                self.ending = Ending("KILLED", {"error": error}, final=False)
            case "failed":
                self.ending = Ending("FAILED", {"error": error_tag(f"{event['kind']}: {event['message']}")})
            case "end":
                self.points += points(read_json(self.directory / "metrics.json"), event)
                self.ending = Ending("FINISHED")

    def files(self) -> list[Path]:
        return super().files() if self.ending is not None and self.ending.status == "FINISHED" else []


def _described(directory: Path, event: Event) -> Description:
    """The spec as planned: what the plan filled in is among the parameters."""
    spec, plan = read_json(directory / "spec.json"), read_json(directory / "plan.json")
    name = spec["run"]["name"] or f"{spec['data']['name']}-{event['spec_hash'][:8]}"
    graph = {"num_nodes": event["nodes"], "num_edges": event["edges"]}
    params = spec | {"sampling": plan.get("sampling", spec["sampling"]), "graph": graph}
    return Description(spec["run"]["experiment"], name, params, {**event["tags"], "spec_hash": event["spec_hash"]})


def points(metrics: Any, event: Event, *, prefix: str = "", step: int | None = None) -> Iterable[Point]:
    """The numbers and truth values of nested mappings, at an event's epoch and time; NaN and infinities stay."""
    leaves = flatten(metrics) if isinstance(metrics, Mapping) else {}
    milliseconds = round(1_000 * event["time"])
    for name, value in leaves.items():
        if isinstance(value, Real):
            yield Point(f"{prefix}{name}", _number(value), milliseconds, event["epoch"] if step is None else step)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by dotted key."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none."""
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        document = json.loads(file.read_bytes())
        return document if isinstance(document, dict) else {}
    return {}


def error_tag(error: str) -> str:
    return without_password(error)[:600]


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the largest double
        return math.inf if value > 0 else -math.inf
