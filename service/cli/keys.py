"""`nml keys`: who may use the service. Works on the database itself, so only those who can write it make keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from service.cli.connect import say
from service.cli.report import result_console
from trainer.errors import Infrastructure, InvalidInput

if TYPE_CHECKING:
    from service.store import Store
    from service.store.records import Key

app = typer.Typer(help="Make, list and revoke API keys, in the service's own database.", no_args_is_help=True)
DAY = 86_400.0

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", envvar="NML_HOME", help="the service's home; default ~/.nml", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="whose key it is, or what for")],
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scope", help="read, submit (also reads) or admin (all); may be repeated; default submit"),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, max=36_500, help="valid for so long; default: for good")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it, alone, on standard output. It cannot be shown again: only its hash is kept.

    export NML_API_KEY=$(nml keys create ada --scope submit --days 90)
    """
    with _store(home) as store:
        try:
            key, text = store.keys.create(
                name, scopes or ["submit"], None if days is None else time.time() + days * DAY
            )
        except ValueError as error:
            raise InvalidInput(str(error)) from error
    if as_json:
        typer.echo(json.dumps({**_document(key), "key": text}, indent=2))
        return
    typer.echo(text)
    until = "" if key.expires is None else f", valid until {_date(key.expires)}"
    say(f'Key {key.id} of "{key.name}" may {", ".join(sorted(key.scopes))}{until}. Keep it: it is not shown again.')


@app.command("list")
def list_(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List all keys, without their secrets."""
    with _store(home) as store:
        keys = store.keys.list()
    if as_json:
        typer.echo(json.dumps([_document(key) for key in keys], indent=2))
        return
    if not keys:
        say("There are no keys. Make one with `nml keys create NAME --scope submit`.")
        return
    table = Table("id", "name", "scopes", "state", "made", "expires", "last used", box=None)
    for key in keys:
        dates = (_date(moment) for moment in (key.created, key.expires, key.last_used))
        table.add_row(key.id, Text(key.name), " ".join(sorted(key.scopes)), _state(key), *dates)
    result_console().print(table)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="from `nml keys list`")], home: HomeOption = None
) -> None:
    """Refuse a key from now on."""
    from service.store.errors import NotFound

    identity = key_id.split("_")[1] if key_id.startswith("nml_") else key_id  # people paste the whole key
    with _store(home) as store:
        try:
            key = store.keys.revoke(identity)
        except NotFound as error:
            raise InvalidInput(f"{error}; `nml keys list` shows those there are") from error
    say(f'Key {key.id} of "{key.name}" is revoked.')


@contextmanager
def _store(home: Path | None) -> Iterator[Store]:
    from service.cli.serve import settings_from
    from service.store import open_store
    from service.store.errors import Unavailable

    try:
        store = open_store(settings_from(home=home))
        try:
            yield store
        finally:
            store.close()
    except Unavailable as error:
        raise Infrastructure(str(error)) from error


def _document(key: Key) -> dict[str, Any]:
    return {
        "id": key.id, "name": key.name, "scopes": sorted(key.scopes), "state": _state(key), "created": key.created,
        "expires": key.expires, "last_used": key.last_used,
    }  # fmt: skip


def _state(key: Key) -> str:
    if key.revoked:
        return "revoked"
    return "expired" if key.expires is not None and key.expires <= time.time() else "valid"


def _date(moment: float | None) -> str:
    return "–" if moment is None else datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")
