"""Jobs of the service for people: a list of them, and all about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from service.cli.report import print_quality, result_console
from service.cli.sweep_table import duration

if TYPE_CHECKING:
    from service.client import Job

STYLES = {"running": "cyan", "succeeded": "green", "failed": "red", "cancelled": "yellow", "cancelling": "yellow"}


def print_jobs(jobs: Sequence[Job]) -> None:
    """A line per job."""
    table = Table("id", "kind", "name", "data set", "state", "progress", "left", "made", box=None)
    for job in jobs:
        table.add_row(
            job.id, job.document["kind"], Text(job.name or "–"), Text(job.dataset), _state(job), _progress(job),
            _left(job), _ago(job.created),
        )  # fmt: skip
    result_console().print(table)


def print_job(job: Job, url: str) -> None:
    """All about one job; figures at the end, where there are some."""
    console, document = result_console(), job.document
    table = Table(box=None, show_header=False)
    rows: dict[str, Any] = {
        "job": job.id, "name": job.name, "kind": document["kind"], "data set": job.dataset, "state": _state(job),
        "attempt": _attempt(job), "made": _date(job.created), "started": _date(job.started), "ended": _date(job.ended),
        "deadline": document["deadline"], "progress": _progress(job), "left": _left(job),
        "failure": None if job.failure_kind is None else f"{job.failure_kind}: {job.failure_message}",
        "MLflow run": job.mlflow_run_id, "MLflow was not told": document["tracker_error"], **_links(job, url),
        "look up": f"nml neighbors --of {job.id} --node ID" if document["links"].get("embeddings") else None,
    }  # fmt: skip
    for name, value in rows.items():
        if value not in (None, "", "–"):
            table.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    console.print(table)
    print_metrics(job)


def print_metrics(job: Job) -> None:
    """The figures of a finished run as `nml train` prints them; else the newest numbers."""
    quality = job.result.get("eval")
    if isinstance(quality, Mapping):
        print_quality(quality, result_console())
        return
    numbers = {name: value for name, value in job.metrics.items() if isinstance(value, int | float)}
    if numbers:
        table = Table("figure", "value", box=None)
        for name, value in numbers.items():
            table.add_row(name.replace("_", " "), f"{value:.4g}")
        result_console().print(table)


def _state(job: Job) -> Text:
    return Text(job.state, style=STYLES.get(job.state, ""))


def _attempt(job: Job) -> str:
    retries = {kind: count for kind, count in job.document["retries"].items() if count}
    why = ", ".join(f"{count} × {kind}" for kind, count in retries.items())
    return f"{job.attempt} (tried again: {why})" if why else str(job.attempt)


def _progress(job: Job) -> str:
    told = job.progress
    epoch, epochs, share = told.get("epoch"), told.get("epochs"), told.get("share")
    parts = [
        str(told["phase"]) if told.get("phase") and not job.is_terminal else "",
        f"{epoch}/{epochs}" if epoch is not None and epochs else "",
        f"{100 * share:.0f} %" if share is not None else "",
    ]
    return " ".join(part for part in parts if part) or "–"


def _left(job: Job) -> str:
    seconds = job.progress.get("eta_seconds")
    return "–" if seconds is None or job.is_terminal else duration(seconds)


def _links(job: Job, url: str) -> dict[str, str]:
    links = job.document["links"]
    found = {name: links[name] for name in ("embeddings", "best", "mlflow") if links.get(name)}
    found |= {"figures": " ".join(link.rpartition("/")[2] for link in links["figures"])}
    return {name: f"{url}{value}" if value.startswith("/") else value for name, value in found.items()}


def _date(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _ago(moment: datetime) -> str:
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    if seconds < 3_600:
        return f"{duration(seconds)} ago"
    return f"{seconds / 3_600:.0f} h ago" if seconds < 48 * 3_600 else f"{seconds / 86_400:.0f} days ago"
