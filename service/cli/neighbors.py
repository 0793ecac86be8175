"""`nml lookup` and `nml neighbors`: vectors of nodes and the nodes nearest to them, asked of the service."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from service.cli.connect import KeyOption, UrlOption, connected, say
from service.cli.embeddings import JsonOption
from service.cli.report import result_console
from trainer.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np

    from service.client import Neighbors

NodeOption = Annotated[list[str], typer.Option("--node", metavar="ID", help="a node by its own id; may be repeated")]
OfOption = Annotated[str, typer.Option("--of", metavar="REF", help="a version or an alias")]
SHOWN = 6  # numbers of a vector in a table


class MetricName(StrEnum):
    """How nearness is measured."""

    COSINE = "cosine"
    DOT = "dot"


class BackendName(StrEnum):
    """What searches."""

    AUTO = "auto"
    EXACT = "exact"
    HNSW = "hnsw"
    IVF = "ivf"


def lookup(
    nodes: NodeOption,
    of: OfOption = "latest",
    out: Annotated[Path | None, typer.Option(help="write all numbers to this npy file, a row per --node")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Print the vectors of nodes, or write them to a file. A node that is not there is an error.

    nml lookup --node 42 --node 7 --out vectors.npy
    """
    with connected(url, key) as client:
        found = client.vectors.lookup(of, nodes)
    known = [row for row, node in enumerate(nodes) if node not in set(found.unknown)]
    if as_json:
        document = {
            "version": found.version, "ids": [nodes[row] for row in known],
            "vectors": [found.vectors[row].tolist() for row in known], "unknown": found.unknown,
        }  # fmt: skip
        typer.echo(json.dumps(document))
    if out is not None and not found.unknown:
        write_npy(out, found.vectors)
        say(f"{len(nodes)} × {found.vectors.shape[1]} float32 of version {found.version} are in {out}")
    elif known and not as_json and out is None:
        print_vectors([nodes[row] for row in known], found.vectors[known])
        say(f"Version {found.version}, {found.vectors.shape[1]} numbers a node; --json or --out gives all of them.")
    refuse_unknown(found.unknown, found.version)


def neighbors(
    nodes: Annotated[
        list[str] | None, typer.Option("--node", metavar="ID", help="a node by its own id; may be repeated")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1_000, help="neighbours of each")] = 10,
    of: OfOption = "latest",
    metric: Annotated[MetricName, typer.Option(help="how nearness is measured")] = MetricName.COSINE,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="only nodes with this label; may be repeated")
    ] = None,
    backend: Annotated[BackendName, typer.Option(help="what searches; auto chooses by size")] = BackendName.AUTO,
    every: Annotated[bool, typer.Option("--all", help="of all nodes, into the file of --out")] = False,
    out: Annotated[
        Path | None, typer.Option(help="with --all: CSV file of node, rank, id, score", metavar="FILE")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Print the nodes nearest to some, best first. A node that is not there is an error.

    nml neighbors --node 42 -k 10
    nml neighbors --all -k 10 --out neighbors.csv
    """
    if every == bool(nodes) or every != (out is not None):
        raise InvalidInput("name nodes with --node, or give --all and --out FILE.csv")
    with connected(url, key) as client:
        if out is not None:
            from service.cli.all_neighbors import write_all_neighbors

            search = {"k": k, "metric": metric.value, "labels": labels or None, "backend": backend.value}
            version, count = write_all_neighbors(client, of, out, **search)
            say(f"The {k} nearest of each of {count:,} nodes of version {version} are in {out}")
            return
        found = client.vectors.neighbors(
            of, nodes or [], k=k, metric=metric.value, labels=labels or None, backend=backend.value
        )
    if as_json:
        typer.echo(json.dumps(neighbors_document(found)))
    elif found.queries:
        print_neighbors(found)
        say(f"Version {found.version}, {found.metric}, search {found.backend}.")
    refuse_unknown(found.unknown, found.version)


def print_vectors(names: list[Any], vectors: np.ndarray) -> None:
    """A line per vector: its length and its first numbers."""
    import numpy as np

    table = Table("node", "length", f"first {min(SHOWN, vectors.shape[1])} of its {vectors.shape[1]} numbers", box=None)
    for name, vector in zip(names, vectors, strict=True):
        start = " ".join(f"{value:+.4f}" for value in vector[:SHOWN])
        table.add_row(Text(str(name)), f"{np.linalg.norm(vector):.4f}", start)
    result_console().print(table)


def print_neighbors(found: Neighbors) -> None:
    """A line per neighbour."""
    table = Table("node", "rank", "id", "score", box=None)
    for query, ids, scores in zip(found.queries, found.ids, found.scores, strict=True):
        for rank, (node, score) in enumerate(zip(ids, scores, strict=True), start=1):
            table.add_row(Text(str(query)), str(rank), Text(str(node)), f"{score:.6f}")
    result_console().print(table)


def neighbors_document(found: Neighbors) -> dict[str, Any]:
    """As JSON, in the service's own form."""
    results = [
        {"query": query, "ids": [*ids], "scores": scores.tolist()}
        for query, ids, scores in zip(found.queries, found.ids, found.scores, strict=True)
    ]
    return {
        "version": found.version, "metric": found.metric, "backend": found.backend, "results": results,
        "unknown": [*found.unknown],
    }  # fmt: skip


def write_npy(path: Path, array: np.ndarray) -> None:
    """Write an array under exactly this name, complete or not at all.

    Raises:
        InvalidInput: it cannot be written there.
    """
    import numpy as np

    from trainer.files.atomic import write_atomically

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    try:
        write_atomically(path, write)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written ({error.strerror}). Name another file.") from error


def refuse_unknown(unknown: Any, version: str) -> None:
    """Raises InvalidInput if nodes asked for are not there; what was found is told by then."""
    if unknown:
        some = ", ".join(map(str, unknown[:10])) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
        raise InvalidInput(f"version {version} has no node {some}. Ids are those of the training data.")
