"""`nml datasets push`: send a graph to the service, with a bar, whatever its size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from service.cli.connect import KeyOption, UrlOption, connected
from service.cli.report import result_console
from service.cli.spec_options import FeaturesOption, IgnoreOption, column_overrides
from service.cli.transfer import transfer_bar
from trainer.errors import InvalidInput
from trainer.spec.data import DataSpec

UPLOAD_PATIENCE = 60.0  # seconds


def push(
    name: Annotated[str, typer.Argument(help="what to call the graph: letters, digits, dashes, underscores")],
    nodes: Annotated[Path | None, typer.Option(help="node table, CSV, TSV or Parquet")] = None,
    edges: Annotated[Path | None, typer.Option(help="edge table, likewise")] = None,
    npz: Annotated[Path | None, typer.Option(help="one npz file")] = None,
    features: FeaturesOption = None,
    ignore: IgnoreOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="how to read it, e.g. data.files.id_column=key"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print what the service says as JSON")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Upload a graph, wait until it is checked, and print its reference. The same content again is the same version.

    nml datasets push papers --nodes papers.csv --edges citations.csv --set data.files.id_column=doi
    nml submit --dataset papers --watch
    """
    from service.cli.datasets import assemble

    data = assemble(nodes, edges, npz, None, column_overrides(features, ignore) + list(overrides or []))
    with (
        connected(url, key, patience=UPLOAD_PATIENCE) as client,
        transfer_bar("uploading", then="checking") as progress,
    ):
        found = client.push_dataset(name, nodes=nodes, edges=edges, npz=npz, options=_options(data), progress=progress)
    if as_json:
        typer.echo(json.dumps(found.document, indent=2))
    else:
        _print(found.document)


def _options(data: DataSpec) -> dict[str, Any]:
    """What the service should know about the files, beside their content.

    Raises:
        InvalidInput: something that belongs to a training spec.
    """
    other = data.model_fields_set - {"name", "files"}
    if other or data.files is None:
        fields = ", ".join(f"data.{name}" for name in sorted(other))
        raise InvalidInput(
            f"{fields}: is part of a training spec; give it to `nml submit`. Here only data.files.* counts"
        )
    return data.files.model_dump(exclude={"npz", "nodes", "edges"}, exclude_defaults=True)


def _print(document: Mapping[str, Any]) -> None:
    console = result_console()
    table = Table(box=None, show_header=False)
    for name in ("ref", "nodes", "edges", "features", "classes", "bytes", "fingerprint"):
        value = document.get(name)
        if value is not None:
            table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    console.print(table)
    for note in document["notes"]:
        console.print(note, markup=False)
    console.print(f"Train on it: nml submit --dataset {document['name']} --watch", markup=False)
