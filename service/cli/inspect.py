"""`nml evaluate`, `nml presets`: look at what there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from service.cli.report import print_quality, result_console
from trainer.config import TrainSpec
from trainer.errors import InvalidInput
from trainer.methods.interface import Method
from trainer.presets import PRESETS, preset_spec
from trainer.spec.data import DatasetName
from tuner.results import shown


def evaluate(
    run: Annotated[Path, typer.Argument(help="a finished run directory")],
    protocol: Annotated[str | None, typer.Option(help="clean or pygcl_swap; default: the run's own")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Judge the embeddings of a finished run again. The run itself is not changed."""
    from trainer.evaluation.evaluate import evaluate_run

    quality = evaluate_run(run, protocol=protocol)
    if as_json:
        typer.echo(json.dumps(quality, indent=2))
    else:
        print_quality(quality, result_console())


def presets(
    name: Annotated[str | None, typer.Argument(help="print this preset's whole spec")] = None,
    dataset: Annotated[str, typer.Option(help="data set the spec is for")] = "cora",
) -> None:
    """List the presets, or print one as JSON that `nml train SPEC` takes."""
    if name is not None:
        typer.echo(preset_spec(name, dataset).model_dump_json(indent=2))
        return
    table = Table("preset", "method", "data set", "T_E", "lr", "weight decay", "settings of the method", box=None)
    for preset, (method, _) in PRESETS.items():
        for data, spec in _distinct(preset).items():
            table.add_row(
                preset, method, data, str(spec.optimiser.epochs), f"{spec.optimiser.lr:g}",
                f"{spec.optimiser.weight_decay:g}", changed_settings(spec.method),
            )  # fmt: skip
    result_console().print(table)


def _distinct(preset: str) -> dict[str, TrainSpec]:
    """What a preset is for each data set it has settings of its own for, and for any other."""
    found: dict[str, TrainSpec] = {}
    for name in get_args(DatasetName):
        with suppress(InvalidInput):  # it has no settings for this one
            spec = preset_spec(preset, name) if name not in ("files", "imported") else None
            if spec is not None:
                found[name] = spec
    usual = found.get("digits")
    return {
        "any other" if name == "digits" else name: spec
        for name, spec in found.items()
        if name == "digits" or usual is None or spec.model_copy(update={"data": usual.data}) != usual
    }


def changed_settings(method: Method) -> str:
    """The settings that are not the method's defaults, as --set takes them."""
    usual = dict(_leaves(type(method).model_validate({}).model_dump(mode="json")))
    own = _leaves(method.model_dump(mode="json"))
    return ", ".join(f"{path}={shown(value)}" for path, value in own if usual[path] != value)


def _leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
