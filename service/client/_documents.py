"""What the service says of jobs, sweeps, events and data sets: the fields most people want, and all as it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})

_SAME = (
    "id", "name", "state", "attempt", "priority", "dataset", "progress", "metrics", "mlflow_run_id", "last_event",
)  # fmt: skip

JobType = TypeVar("JobType", bound="Job")


@dataclass(frozen=True)
class Job:
    """A job as it was when the service was asked.

    Attributes:
        state: queued, running, cancelling, succeeded, failed or cancelled; the last three are final.
        attempt: how often it was started; 0 while it has not been.
        dataset: name of its graph, with the version where it has one.
        progress: phase, epoch, epochs, share (0 to 1), eta_seconds, as far as known.
        metrics: its newest figures.
        result: figures of the finished job, as in its metrics.json (of a sweep: results.json); empty until then.
        failure_kind: invalid, oom, infra or deadline, if it failed; with a message for people.
        last_event: number of its newest event.
        document: everything the service said; `spec` and `links` among it.
    """

    id: str
    name: str | None
    state: str
    attempt: int
    priority: int
    dataset: str
    created: datetime
    started: datetime | None
    ended: datetime | None
    progress: Mapping[str, Any]
    metrics: Mapping[str, Any]
    result: Mapping[str, Any]
    failure_kind: str | None
    failure_message: str | None
    mlflow_run_id: str | None
    last_event: int
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def is_terminal(self) -> bool:
        """Whether nothing about it will change any more."""
        return self.state in TERMINAL


@dataclass(frozen=True)
class Sweep(Job):
    """A sweep is a job of many runs; its trials and best settings can be asked for as well."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Attributes:
        seq: 1, 2, 3, … without gaps.
        type: "state" if the job's state changed; else what its run told: start, step, epoch, phase, checkpoint, …
        data: what that type has to say; always its time, in seconds since 1970.
    """

    seq: int
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Dataset:
    """A graph that jobs can name.

    Attributes:
        ref: names one version of an uploaded graph for good; the name alone for those that are always there.
        state: checking, ready or failed.
        document: everything the service said, counts among it.
    """

    ref: str
    name: str
    state: str
    document: Mapping[str, Any] = field(repr=False, compare=False)


def job_from(kind: type[JobType], document: Mapping[str, Any]) -> JobType:
    """Read a job document."""
    failure = document["failure"] or {}
    same = {name: document[name] for name in _SAME}
    times = {name: _time(document[name]) for name in ("created", "started", "ended")}
    return kind(
        failure_kind=failure.get("kind"), failure_message=failure.get("message"), document=document,
        result=document.get("result") or {}, **same, **times,
    )  # fmt: skip


def dataset_from(document: Mapping[str, Any]) -> Dataset:
    """Read a data set document; built-in ones have no versions and are always ready."""
    name = document["name"]
    return Dataset(document.get("ref") or name, name, document.get("state") or "ready", document)


def _time(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text)
