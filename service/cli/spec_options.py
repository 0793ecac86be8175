"""The training spec that a command line asks for: from a file or from options, completed by its preset."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.files.documents import apply_overrides, read_document
from trainer.presets import complete
from trainer.spec.data import DatasetName

MethodOption = Annotated[str | None, typer.Option(help="a name from `nml methods`; default nml")]
PresetOption = Annotated[str | None, typer.Option(help="a name from `nml presets`; default: the method's")]

FeaturesOption = Annotated[
    list[str] | None,
    typer.Option("--features", metavar="COLUMN", help="only this column of the node table is a feature; repeatable"),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="COLUMN", help="this column of the node table is no feature; repeatable"),
]


def file_overrides(nodes: Path | None, edges: Path | None, dataset: str | None) -> list[str]:
    """--nodes and --edges as --set would say them.

    Raises:
        InvalidInput: only one of them, or a data set besides.
    """
    if nodes is None and edges is None:
        return []
    if nodes is None or edges is None or dataset is not None:
        raise InvalidInput("give --nodes and --edges, both, or --dataset")
    files = {"nodes": str(nodes), "edges": str(edges)}
    return ["data.name=files", f"data.files={json.dumps(files)}"]


def column_overrides(features: list[str] | None, ignore: list[str] | None) -> list[str]:
    """--features and --ignore as --set would say them."""
    given = {"feature_columns": features, "ignore_columns": ignore}
    return [f"data.files.{key}={json.dumps(names)}" for key, names in given.items() if names]


@dataclass(frozen=True)
class Asked:
    """What the options of a command say of a training spec."""

    spec_file: Path | None = None
    dataset: str | None = None
    method: str | None = None
    preset: str | None = None
    overrides: list[str] = field(default_factory=list)  # KEY=VALUE each

    @property
    def is_described(self) -> bool:
        """Whether options say what a spec file says by itself."""
        return bool(self.dataset or self.method or self.preset)


def assemble(asked: Asked) -> TrainSpec:
    """One spec from a file or from options, with overrides on top and its preset underneath.

    Raises:
        InvalidInput: the file is no spec, options contradict it, or a field is wrong.
    """
    if asked.spec_file is None:
        described = {"method": asked.method, "preset": asked.preset}
        document: Any = {"data": _named(asked.dataset or "digits")}
        document |= {key: value for key, value in described.items() if value is not None}
    else:
        if asked.is_described:
            raise InvalidInput(
                "a spec file says its own data set and settings; change them with --set, not --dataset, --method or "
                "--preset"
            )
        document = read_document(asked.spec_file)
        if not isinstance(document, dict):
            raise InvalidInput(f"{asked.spec_file}: a spec is a mapping of sections, see `nml train --show-spec`")
    return parse_spec(completed(document, asked.overrides))


def _named(dataset: str) -> dict[str, str]:
    """The data section for a name from `nml datasets`: built in, public, or imported."""
    from trainer.data.datasets import imported_names
    from trainer.process.home import nml_home

    if dataset not in get_args(DatasetName) and dataset in imported_names(nml_home()):
        return {"name": "imported", "imported": dataset}
    return {"name": dataset}


def completed(document: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The document with overrides on top and, for what both leave out, its preset underneath."""
    if isinstance(document.get("method"), str):  # a section, so that --set reaches what is in it
        document = {**document, "method": {"name": document["method"]}}
    return complete(apply_overrides(document, overrides))
