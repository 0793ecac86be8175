"""`nml methods`: which methods there are, what each can do, and its settings. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from service.cli.report import result_console
from trainer.errors import InvalidInput
from trainer.methods import BY_NAME
from trainer.methods.interface import Method
from trainer.presets import PRESETS, preset_document
from tuner.results import shown

SCOPES = {
    "whole": "whole graph", "cached": "whole graph by batches with cached gradients", "batch": "sampled batches",
    "bank": "sampled batches against a bank",
}  # fmt: skip
BOUNDS = {"exclusiveMinimum": "> {}", "minimum": "≥ {}", "exclusiveMaximum": "< {}", "maximum": "≤ {}"}


def methods(
    name: Annotated[str | None, typer.Argument(help="show this method's settings and its preset")] = None,
    dataset: Annotated[str, typer.Option(help="data set the preset is for")] = "cora",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the methods for `nml train --method NAME`, or show what can be set in one."""
    if name is not None and name not in BY_NAME:
        raise InvalidInput(f"unknown method (expected one of {', '.join(BY_NAME)})")
    if as_json:
        about = [overview(method) for method in BY_NAME] if name is None else details(name, dataset)
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
    elif name is None:
        _print_all(result_console())
    else:
        _print_one(result_console(), name, dataset)


def overview(name: str) -> dict[str, Any]:
    """What a method is and what it can do."""
    method = BY_NAME[name]
    return {
        "name": name, "title": method.title, "good_for": method.summary, "paper": method.paper,
        "scopes": list(method.scopes), "workers": method.teams, "sweeps": method.learns,
        "presets": [preset for preset, (of, _) in PRESETS.items() if of == name],
    }  # fmt: skip


def details(name: str, dataset: str) -> dict[str, Any]:
    """The same with its settings by dotted field, its preset for a data set, and what a sweep searches by default."""
    method = BY_NAME[name]
    return overview(name) | {
        "settings": dict(settings(method, "method.")), "preset": preset_document(name, dataset),
        "space": method.model_validate({}).space(),
    }  # fmt: skip


def settings(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field by its dotted path: JSON schema of its values, with default and description."""
    properties = model.model_json_schema()["properties"]
    for field, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from settings(kind, f"{prefix}{field}.")
        elif not (field == "name" and issubclass(model, Method)):
            yield f"{prefix}{field}", {key: value for key, value in properties[field].items() if key != "title"}


def _print_all(console: Console) -> None:
    table = Table("method", "", "trains on", "workers", "sweeps", "good for", "paper", box=None)
    for name in BY_NAME:
        about = overview(name)
        table.add_row(
            name, about["title"], ", ".join(about["scopes"]), _yes(about["workers"]), _yes(about["sweeps"]),
            about["good_for"], about["paper"],
        )  # fmt: skip
    console.print(table)
    meaning = "; ".join(f"{scope}: {words}" for scope, words in SCOPES.items())
    console.print(f"{meaning}. workers: run.workers may exceed 1. Settings: nml methods NAME", markup=False)


def _print_one(console: Console, name: str, dataset: str) -> None:
    about = details(name, dataset)
    console.print(f"{about['title']}: {about['good_for']}. {about['paper']}.", markup=False)
    console.print(f"Trains on: {', '.join(SCOPES[scope] for scope in about['scopes'])}.", markup=False)
    console.print(
        f"Several workers: {_yes(about['workers'])}. Sweeps: {_yes(about['sweeps'])}. "
        f"Presets: {', '.join(about['presets'])}.",
        markup=False,
    )
    if about["settings"]:
        table = Table("setting", "default", "allowed", "", box=None)
        for path, field in about["settings"].items():
            table.add_row(path, shown(field.get("default")), allowed(field), field.get("description", ""))
        console.print(table)
    else:
        console.print("It has no settings of its own.")
    console.print(f"Preset {name} for {dataset}; what it leaves out has its default:", markup=False)
    console.print(json.dumps(about["preset"], indent=2), markup=False)


def allowed(field: dict[str, Any]) -> str:
    """The values a field takes, in a few words: `number > 0, ≤ 1`, `one of a, b`, `true or false`."""
    choices = [item for item in field.get("anyOf", [field]) if item.get("type") != "null"]
    words = " or ".join(_kind(item) for item in choices)
    return words if len(choices) == len(field.get("anyOf", [field])) else f"{words}, or null"


def _kind(item: dict[str, Any]) -> str:
    if "enum" in item:
        return f"one of {', '.join(map(str, item['enum']))}"
    if "const" in item:
        return str(item["const"])
    kind = {"boolean": "true or false", "array": "list"}.get(item.get("type", ""), item.get("type", "any"))
    bounds = ", ".join(words.format(f"{item[key]:g}") for key, words in BOUNDS.items() if key in item)
    return f"{kind} {bounds}".rstrip()


def _yes(value: bool) -> str:
    return "yes" if value else "no"
