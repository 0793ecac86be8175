"""`nml serve`: the API and its dispatcher on one machine, or one of them alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connect import DEFAULT_URL, say
from trainer.errors import InvalidInput

if TYPE_CHECKING:
    from service.settings import Settings


class Role(StrEnum):
    """Which processes to run."""

    ALL = "all"
    API = "api"
    DISPATCHER = "dispatcher"


class RunnerName(StrEnum):
    """What trains."""

    LOCAL = "local"
    RAY = "ray"


def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on; default 127.0.0.1, this machine only")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="default 8000")] = None,
    home: Annotated[Path | None, typer.Option(help="where everything is kept; default NML_HOME, else ~/.nml")] = None,
    role: Annotated[
        Role, typer.Option(help="run both processes, or one alone (several dispatchers may run)")
    ] = Role.ALL,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="API processes; default 1")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="jobs at a time; default: one for every two CPUs")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="memory of all jobs together, e.g. 16GB; default: most")
    ] = None,
    runner: Annotated[RunnerName | None, typer.Option(help="train in processes of this machine, or on Ray")] = None,
    ray_jobs_url: Annotated[str | None, typer.Option(help="Ray's dashboard, such as http://head:8265")] = None,
    mlflow_ui: Annotated[
        bool, typer.Option("--mlflow-ui", help="also start MLflow's own pages, and link to them")
    ] = False,
) -> None:
    """Serve the REST API and run what is submitted. The environment can set the same and more, as NML_HOST, NML_PORT, …

    nml serve --mlflow-ui
    nml serve --host 0.0.0.0 --role api        (other machines need a key: nml keys create)
    """
    settings = settings_from(
        host=host, port=port, home=home, api_workers=workers, concurrency=concurrency, memory_limit=memory_limit,
        runner=runner, ray_jobs_url=ray_jobs_url,
    )  # fmt: skip
    from service.dispatch import supervisor

    if role is not Role.DISPATCHER:
        remind_of_keys(settings)
    supervisor.serve(settings, role=role.value, mlflow_ui=mlflow_ui, say=_announcing(role))


def settings_from(**given: Any) -> Settings:
    """The service's settings: what is given, else the environment, else the defaults.

    Raises:
        InvalidInput: a value cannot be used; names the option and the variable.
    """
    from pydantic import ValidationError

    from service.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        found = []
        for problem in error.errors():
            name = str(problem["loc"][0]) if problem["loc"] else ""
            message = problem["msg"].removeprefix("Value error, ")
            found.append(f"NML_{name.upper()}: {message}" if name else message)
        raise InvalidInput("; ".join(found)) from error


def _announcing(role: Role) -> Callable[[str], None]:
    """Prints the addresses that the supervisor gives once they answer, before the API's what to do there."""

    def say(line: str) -> None:
        what, _, where = line.partition(" ")
        if what == "API":
            typer.echo(_how_to_use(where.strip().removesuffix("/v1/jobs"), role))
        typer.echo(line)

    return say


def _how_to_use(url: str, role: Role) -> str:
    where = "" if url == DEFAULT_URL else f" --url {url}"
    waits = "Jobs wait until a dispatcher runs too: nml serve --role dispatcher\n" if role is Role.API else ""
    return (
        f"The service answers; {url}/readyz tells whether jobs would run. {waits}In another terminal:\n"
        f"  nml submit --dataset digits --watch{where}\n"
    )


def remind_of_keys(settings: Settings) -> None:
    """Say how to make a key where one is needed and there is none: else everything would be refused."""
    if not settings.keys_required:
        return
    from service.store import open_store
    from service.store.errors import Unavailable

    moment = time.time()
    try:
        with closing(open_store(settings)) as store:
            keys = store.keys.list()
    except Unavailable:
        return  # the service waits for its database, and so can this
    if not any(not key.revoked and (key.expires is None or key.expires > moment) for key in keys):
        say(
            f"Every request to {settings.host} needs an API key, and there is none yet. Make one:\n"
            f"  nml keys create NAME --scope submit --home {quote(str(settings.home))}"
        )
