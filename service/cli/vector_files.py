"""`nml export`: a whole table of embeddings as a file, however large; cut off, the same command goes on."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from service.cli.connect import KeyOption, UrlOption, connected, say
from service.cli.embeddings import JsonOption, RefArgument
from service.cli.transfer import transfer_bar

DOWNLOAD_PATIENCE = 60.0  # seconds


class FormatName(StrEnum):
    """What the file holds."""

    NPY = "npy"
    PARQUET = "parquet"
    IDS = "ids"


def export(
    out: Annotated[Path, typer.Option(help="the file; grows as FILE.part until it is complete", metavar="FILE")],
    ref: RefArgument = "latest",
    format: Annotated[
        FormatName | None,
        typer.Option(
            help="npy: float32 vectors; ids: the ids of their rows; parquet: both, with labels. Default: parquet if "
            "FILE ends so, else npy"
        ),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Download all vectors of a version. The same command after a cut goes on where it stopped.

    nml export latest --out vectors.npy
    nml export latest --out vectors.parquet
    """
    kind = format or (FormatName.PARQUET if out.suffix.lower() == ".parquet" else FormatName.NPY)
    try:
        with connected(url, key, patience=DOWNLOAD_PATIENCE) as client, transfer_bar("downloading") as progress:
            version = client.vectors.download(ref, out, kind.value, progress)
    except KeyboardInterrupt:
        say("Interrupted; the same command goes on from there.")
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(version.document, indent=2))
    else:
        say(f"{version.rows:,} × {version.dim} of version {version.version} ({kind.value}) are in {out}")
