"""`nml embeddings`, `nml publish`, `nml unpublish`, `nml index`: published embeddings, and what is built for them."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from service.cli.connect import LONG_PATIENCE, PATIENCE, KeyOption, UrlOption, connected, say

RefArgument = Annotated[str, typer.Argument(metavar="REF", help="a version or an alias")]
JsonOption = Annotated[bool, typer.Option("--json", help="print what the service says as JSON")]


class IndexName(StrEnum):
    """A kind of search index."""

    HNSW = "hnsw"
    IVF = "ivf"


def embeddings(
    ref: Annotated[str | None, typer.Argument(metavar="[REF]", help="tell all about this version or alias")] = None,
    dataset: Annotated[str | None, typer.Option(help="only those of this data set, by name or reference")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, newest first")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List the newest versions of embeddings, or tell all about one: size, figures, aliases, indexes, addresses."""
    from service.cli.embeddings_report import print_version, print_versions

    with connected(url, key) as client:
        if ref is not None:
            version = client.vectors.get(ref)
            if as_json:
                typer.echo(json.dumps(version.document, indent=2))
            else:
                print_version(version, client.url)
            return
        found = list(client.vectors.list(dataset, limit=limit))
    if as_json:
        typer.echo(json.dumps([version.document for version in found], indent=2))
    elif found:
        print_versions(found)
    else:
        say("There are no such embeddings. Train some: nml submit --dataset digits --watch")


def publish(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="a training job that has succeeded")],
    wait: Annotated[bool, typer.Option("--wait", help="until it can be asked")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Publish the embeddings of a job and print the version, which is the job's id.

    Done by itself when a job succeeds; needed where that failed, or where the version was removed.
    """
    with connected(url, key, patience=LONG_PATIENCE if wait else PATIENCE) as client:
        version = client.vectors.publish(job_id)
        if wait:
            version = client.vectors.wait(version)
    typer.echo(json.dumps(version.document, indent=2) if as_json else version.version)
    if not as_json:
        say(f"{version.dataset}, {version.state}. Look at it: nml embeddings {version.version}")


def unpublish(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="from `nml embeddings`; not an alias")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Remove a version and its files. Refused while an alias that somebody set points to it; the job stays."""
    with connected(url, key) as client:
        client.vectors.delete(version)
    say(f"Version {version} is removed.")


def index(
    ref: RefArgument = "latest",
    kind: Annotated[
        IndexName, typer.Option(help="hnsw: quicker to ask; ivf: smaller and quicker to build")
    ] = IndexName.HNSW,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Have a search index built in the background. Its recall is measured; `nml embeddings REF` tells it."""
    with connected(url, key) as client:
        version = client.vectors.build_index(ref, kind.value)
    if as_json:
        typer.echo(json.dumps(version.document, indent=2))
    else:
        state = version.indexes.get(kind.value, {}).get("state", "building")
        say(f"Index {kind.value} of {version.version} is {state}. Look: nml embeddings {version.version}")
