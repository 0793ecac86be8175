"""`nml watch`: follow a job to its end, wherever it runs; the exit code is the job's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import LONG_PATIENCE, KeyOption, UrlOption, connected, say
from service.cli.train import EXIT_CODES

if TYPE_CHECKING:
    from service.client import Client, Job

INTERRUPTED = 130  # what a shell says of a command ended by Ctrl-C


def watch(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="a job or sweep, from `nml submit` or `nml jobs`")],
    as_json: Annotated[
        bool, typer.Option("--json", help="every event, from the first, as one JSON object a line")
    ] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Show how a job goes on: a bar on a terminal, lines in a pipe. Ctrl-C ends the watching, not the job.

    Goes on when the service restarts. Ends with the job, and with the exit code of what came of it.
    """
    with connected(url, key, patience=LONG_PATIENCE) as client:
        follow(client, client.job(job_id), as_json=as_json)


watch.__doc__ = f"{watch.__doc__}\n{EXIT_CODES} A deadline that was missed counts as cancelled."


def follow(client: Client, job: Job, *, as_json: bool) -> None:
    """Show a job until it has ended, then what came out.

    Raises:
        JobFailed: it did not succeed; has the exit code.
        typer.Exit: interrupted; the job goes on.
    """
    from service.cli.job_report import print_job

    try:
        show_events(client, job, as_json=as_json)
        ended = client.wait(job)
    except KeyboardInterrupt:
        say(f"Job {job.id} goes on. See it again: nml watch {job.id}; end it: nml cancel {job.id}")
        raise typer.Exit(INTERRUPTED) from None
    if not as_json:
        print_job(ended, client.url)


def show_events(client: Client, job: Job, *, as_json: bool) -> None:
    """Show what happens to a job until it has ended."""
    from service.cli.watch_display import displaying
    from service.client import Sweep

    if job.is_terminal and not as_json:
        return
    whole = as_json or isinstance(job, Sweep)  # a program, and a table of trials, need all of the story
    with displaying(job, as_json=as_json) as show:
        for event in client.events(job, after=0 if whole else job.last_event):
            show(event)
