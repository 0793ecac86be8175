"""How commands find the service: --url and --key, or the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from service.client import Client

DEFAULT_URL = "http://127.0.0.1:8000"
PATIENCE = 15.0  # seconds for a command that a person waits for: a busy service asks for 5 or 10
ABSENCE = 5.0  # of them while nothing answers; enough for a restart of the API, and for a mistyped address
LONG_PATIENCE = 600.0  # for one that follows a job: the service may be updated meanwhile

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="NML_URL", help=f"the service; default {DEFAULT_URL}", show_default=False),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", envvar="NML_API_KEY", help="API key, if the service wants one", show_default=False),
]


@contextmanager
def connected(url: str | None, key: str | None, *, patience: float = PATIENCE) -> Iterator[Client]:
    """A client that tells on standard error when it has to try again."""
    from service.client import Client

    absence = ABSENCE if patience <= PATIENCE else None  # who waits for long waits for an absent service as well
    with Client(url, key, patience=patience, absence=absence, notice=say) as client:
        yield client


def say(text: str) -> None:
    """A remark on standard error, so that results alone are on standard output."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)
