"""`nml jobs`, `nml cancel`, `nml logs`: look at the service's jobs, end one, read what it wrote."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from itertools import islice
from typing import Annotated

import typer

from service.cli.connect import LONG_PATIENCE, PATIENCE, KeyOption, UrlOption, connected, say

FOLLOW_SECONDS = 1.0  # between looks at a log that grows
FOLLOW_LINES = 10_000  # looked at each time: as many as the service gives


class StateName(StrEnum):
    """A job's state."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


def jobs(
    job_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="tell all about this one")] = None,
    state: Annotated[StateName | None, typer.Option(help="only those in this state")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, newest first")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="print what the service says as JSON")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List the newest jobs and sweeps, or tell all about one: state, progress, time left, figures, failure, links."""
    from service.cli.job_report import print_job, print_jobs

    with connected(url, key) as client:
        if job_id is not None:
            job = client.job(job_id)
            if as_json:
                typer.echo(json.dumps(job.document, indent=2))
            else:
                print_job(job, client.url)
            return
        found = [*client.jobs(state=state, limit=limit), *client.sweeps(state=state, limit=limit)]
    found = list(islice(sorted(found, key=lambda job: job.id, reverse=True), limit))  # ids begin with their time
    if as_json:
        typer.echo(json.dumps([job.document for job in found], indent=2))
    elif found:
        print_jobs(found)
    else:
        say("There are no such jobs. Submit one: nml submit --dataset digits --watch")


def cancel(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="a job or sweep")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """End a job: at once if it waits, else after it wrote a checkpoint."""
    with connected(url, key) as client:
        job = client.cancel(job_id)
    say(f"Job {job.id} is {job.state}.")


def logs(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="a job or sweep")],
    tail: Annotated[int, typer.Option(min=1, max=FOLLOW_LINES, help="the last so many lines")] = 1_000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the job ends; Ctrl-C stops it")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Print what a job's process logged."""
    with connected(url, key, patience=LONG_PATIENCE if follow else PATIENCE) as client:
        job = client.job(job_id)
        if not follow:
            typer.echo(client.log(job, tail=tail), nl=False)
            return
        shown: list[str] | None = None
        try:
            while True:
                ended = client.job(job.id).is_terminal  # asked first: then the log below is complete
                lines = client.log(job, tail=FOLLOW_LINES).splitlines(keepends=True)
                if lines and not lines[-1].endswith("\n") and not ended:
                    lines.pop()  # it is being written
                new = lines[-tail:] if shown is None else lines[overlap(shown, lines) :]
                typer.echo("".join(new), nl=False)
                shown = lines
                if ended:
                    return
                time.sleep(FOLLOW_SECONDS)
        except KeyboardInterrupt:
            say(f"Job {job.id} goes on.")


def overlap(before: list[str], now: list[str]) -> int:
    """How many lines at the beginning of `now` are the end of `before`.

    Both are ends of one growing text, of which lines may have left at the beginning.
    """
    for size in range(min(len(before), len(now)), 0, -1):
        if before[-size:] == now[:size]:
            return size
    return 0
