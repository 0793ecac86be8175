"""`nml submit`: send a training job or a sweep to the service."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from service.cli.connect import LONG_PATIENCE, KeyOption, UrlOption, connected, say
from service.cli.spec_options import Asked, MethodOption, PresetOption, assemble
from service.cli.sweep_spec import assemble_sweep
from service.cli.watch import follow
from trainer.config import TrainSpec
from trainer.errors import InvalidInput
from trainer.spec.data import DatasetName, DataSpec
from tuner.config import SweepSpec

if TYPE_CHECKING:
    from service.client import Job


def submit(
    spec_file: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="JSON or YAML spec; or use the options")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="a built-in or public set, or one from `nml datasets push`; default digits")
    ] = None,
    method: MethodOption = None,
    preset: PresetOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="override a field, e.g. method.temperature=0.4"),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="a sweep: SPEC is a sweep spec, options describe its base")
    ] = False,
    trials: Annotated[int | None, typer.Option(help="with --sweep: trials in all; default 30")] = None,
    name: Annotated[str | None, typer.Option(help="what to call it in lists")] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="higher ones start first")] = 0,
    deadline: Annotated[
        float | None, typer.Option("--deadline-minutes", help="give it up if it has not ended by then; default: never")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="the same key and spec again give the same job, for scripts that repeat themselves"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="follow it to its end, as `nml watch`")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the job (with --watch: each event) as JSON")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Queue a job and print its id, alone, on standard output.

    nml submit --dataset cora --preset nml-official --watch
    nml submit --dataset digits --sweep --trials 20 --name "first try"
    """
    asked = Asked(spec_file, dataset, method, preset, list(overrides or []))
    if trials is not None and not sweep:
        raise InvalidInput("--trials goes with --sweep")
    about: dict[str, Any] = {
        "name": name, "priority": priority, "deadline_minutes": deadline, "idempotency_key": idempotency_key,
    }  # fmt: skip
    with connected(url, key) as client:
        if sweep:
            job: Job = client.submit_sweep(sweep_spec(asked, trials), **about)
        else:
            job = client.submit(training_spec(asked), **about)
    if as_json and not watch:
        typer.echo(json.dumps(job.document, indent=2))
    elif not as_json:
        typer.echo(job.id)
    if watch:
        with connected(url, key, patience=LONG_PATIENCE) as client:
            follow(client, job, as_json=as_json)
    elif not as_json:
        say(f"{job.dataset}, {job.state}. Follow it: nml watch {job.id}")


def training_spec(asked: Asked) -> TrainSpec:
    """The spec to send, checked here as far as it can be without the data.

    Raises:
        InvalidInput: a field is wrong, or names files that only this machine has.
    """
    spec = assemble(_uploaded(asked))
    _refuse_files(spec.data)
    return spec


def sweep_spec(asked: Asked, trials: int | None) -> SweepSpec:
    """As `training_spec`, for a sweep."""
    spec = assemble_sweep(_uploaded(asked), {"trials": trials})
    _refuse_files(spec.base.data)
    return spec


def _uploaded(asked: Asked) -> Asked:
    """The same, where a name that is not built in is one of an uploaded graph."""
    if asked.spec_file is not None or asked.dataset is None or asked.dataset in get_args(DatasetName):
        return asked
    name = ["data.name=imported", f"data.imported={json.dumps(asked.dataset)}"]
    return replace(asked, dataset=None, overrides=[*name, *asked.overrides])


def _refuse_files(data: DataSpec) -> None:
    if data.files is not None:
        raise InvalidInput(
            "data.files names files of this machine, which the service cannot read. Upload them with "
            "`nml datasets push NAME`, then submit with --dataset NAME."
        )
