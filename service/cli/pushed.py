"""`nml datasets pushed` and `unpush`: the graphs that a service has, and the way to remove one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from service.cli.connect import KeyOption, UrlOption, connected, say
from service.cli.report import result_console

if TYPE_CHECKING:
    from service.client import Dataset

_COLUMNS = ("nodes", "edges", "features", "classes", "bytes")


def pushed(
    as_json: Annotated[bool, typer.Option("--json", help="print the list as JSON")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List the graphs that jobs of the service can name: built in, public, and uploaded."""
    with connected(url, key) as client:
        found = list(client.datasets())
    if as_json:
        typer.echo(json.dumps([dataset.document for dataset in found], indent=2))
        return
    table = Table("graph", "state", *_COLUMNS, box=None)
    for dataset in found:
        table.add_row(Text(dataset.ref), dataset.state, *_counts(dataset))
    result_console().print(table)


def unpush(
    ref: Annotated[str, typer.Argument(help="one version, as `nml datasets pushed` lists it")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Remove one version of an uploaded graph from the service; refused while a job uses it."""
    with connected(url, key) as client:
        client.delete_dataset(ref)
    say(f"Data set {ref} is removed.")


def _counts(dataset: Dataset) -> list[str]:
    values = [dataset.document.get(name) for name in _COLUMNS]
    return ["–" if value is None else f"{value:,}" for value in values]
