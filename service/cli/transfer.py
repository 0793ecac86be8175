"""A bar for what goes over the network, on standard error if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@contextmanager
def transfer_bar(doing: str, then: str | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """What to tell the bytes so far and in all; none if nobody would see it.

    Args:
        doing: what stands before the bar, such as "uploading".
        then: what stands there once all bytes are through.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(doing, total=None)

        def show(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total, description=doing if done < total else then or doing)

        yield show
