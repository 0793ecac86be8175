"""`nml export`: a whole table of embeddings as a file, however large; cut off, the same command goes on."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.cli.connect import KeyOption, UrlOption, connected, say
from service.cli.embeddings import JsonOption, RefArgument
from service.cli.transfer import transfer_bar
from trainer.errors import InvalidInput

if TYPE_CHECKING:
    from service.client import Client, Version
    from service.client._downloads import Progress

DOWNLOAD_PATIENCE = 60.0  # seconds


class FormatName(StrEnum):
    """What the file holds."""

    NPY = "npy"
    PARQUET = "parquet"
    CSV = "csv"
    NPZ = "npz"
    IDS = "ids"


SERVED: dict[FormatName, Literal["npy", "parquet", "ids"]] = {  # what the service has as a file
    FormatName.NPY: "npy", FormatName.PARQUET: "parquet", FormatName.IDS: "ids",
}  # fmt: skip


def export(
    out: Annotated[Path, typer.Option(help="the file; grows as FILE.part until it is complete", metavar="FILE")],
    ref: RefArgument = "latest",
    format: Annotated[
        FormatName | None,
        typer.Option(
            help="npy: float32 vectors; ids: the ids of their rows; npz: both; parquet, csv: both, with labels. "
            "Default: what FILE ends in"
        ),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Download all vectors of a version. The same command after a cut goes on where it stopped.

    nml export latest --out vectors.npy
    nml export latest --out vectors.csv
    """
    kind = chosen_format(out, format)
    try:
        with connected(url, key, patience=DOWNLOAD_PATIENCE) as client, transfer_bar("downloading") as progress:
            version = _write(client, ref, out, kind, progress)
    except KeyboardInterrupt:
        say("Interrupted; the same command goes on from there.")
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(version.document, indent=2))
    else:
        say(f"{version.rows:,} × {version.dim} of version {version.version} ({kind.value}) are in {out}")


def chosen_format(out: Path, asked: FormatName | None) -> FormatName:
    """What to write: what the name says, or what --format says if the name does not contradict it.

    Raises:
        InvalidInput: the name says nothing, or something else.
    """
    ending = out.suffix.lower().removeprefix(".")
    named = FormatName(ending) if ending in set(FormatName) and ending != "ids" else None
    if asked is None and named is None:
        raise InvalidInput(f"{out}: end its name in .npy, .npz, .parquet or .csv, or say what to write with --format")
    if asked is FormatName.IDS and named in (None, FormatName.NPY):  # ids are an npy file, or JSON if they are text
        return asked
    if asked is not None and named not in (None, asked):
        raise InvalidInput(f"{out}: its name says {ending}, and --format says {asked.value}. Change one of them.")
    return asked or FormatName(ending)


def _write(client: Client, ref: str, out: Path, kind: FormatName, progress: Progress | None) -> Version:
    """Csv and npz are made here, of a file that the service has; that one stays until they are complete."""
    if kind in SERVED:
        return client.vectors.download(ref, out, SERVED[kind], progress)
    from service.cli.converted import write_csv, write_npz

    table = out.with_name(f"{out.name}.parquet")
    version = client.vectors.download(ref, table, "parquet", progress)
    (write_csv if kind is FormatName.CSV else write_npz)(table, out)
    table.unlink()
    return version
