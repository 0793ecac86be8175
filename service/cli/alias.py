"""`nml alias`: names that point to versions of embeddings: look, move, roll back, remove."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from service.cli.connect import KeyOption, UrlOption, connected, say
from service.cli.embeddings import JsonOption
from service.cli.report import result_console
from trainer.errors import InvalidInput

if TYPE_CHECKING:
    from service.client import Alias, Client


def alias(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="none: list them all")] = None,
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="point it there; a version, or another alias")
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="point it to the version before")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="remove it; the version stays")] = False,
    history: Annotated[bool, typer.Option("--history", help="where it has pointed, newest first")] = False,
    expected: Annotated[
        str | None, typer.Option(help='with VERSION: only if it points to this one now; "": only if it is new')
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Tell where an alias points, or move it, for all at once.

    nml alias production 01k9…    point it to a version
    nml alias production --rollback
    """
    if sum((version is not None, rollback, remove, history)) > 1:
        raise InvalidInput("give one of VERSION, --rollback, --remove and --history")
    if name is None and (rollback or remove or history):
        raise InvalidInput("name the alias, such as: nml alias production --rollback")
    if expected is not None and version is None:
        raise InvalidInput("--expected goes with VERSION")
    with connected(url, key) as client:
        if name is None:
            _print_all(list(client.vectors.aliases()), as_json=as_json)
        elif remove:
            client.vectors.remove_alias(name)
            say(f"Alias {name} is removed.")
        else:
            _print(_asked(client, name, version, expected, rollback=rollback), history=history, as_json=as_json)


def _asked(client: Client, name: str, version: str | None, expected: str | None, *, rollback: bool) -> Alias:
    if rollback:
        return client.vectors.rollback_alias(name)
    if version is None:
        return client.vectors.alias(name)
    return client.vectors.set_alias(name, client.vectors.get(version).version, expected=expected)


def _print_all(found: Sequence[Alias], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([alias.document for alias in found], indent=2))
    elif found:
        rows = [(Text(alias.name), alias.version, _how(alias), alias.document.get("moved")) for alias in found]
        _print_table(("alias", "version", "moved by", "moved"), rows)
    else:
        say("There are no aliases yet; the first one comes with the first embeddings.")


def _print(alias: Alias, *, history: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(alias.document, indent=2))
    elif history:
        _print_table(("move", "version", "reason", "time"), [_move(entry) for entry in alias.history])
    else:
        typer.echo(alias.version)
        say(f"Alias {alias.name} points to {alias.version}; moved by {_how(alias)}, {alias.document.get('moved')}.")


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(*titles, box=None)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    result_console().print(table)


def _move(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["seq"], entry["version"] or "–", entry["reason"], entry["time"]


def _how(alias: Alias) -> str:
    return "itself" if alias.automatic else "hand"
