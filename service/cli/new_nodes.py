"""`nml embed` and `nml classify`: vectors for nodes that were not in the graph, and labels for those that have none."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connect import KeyOption, UrlOption, connected, say
from service.cli.embeddings import JsonOption, RefArgument
from service.cli.neighbors import neighbors_document, print_neighbors, print_vectors, write_npy
from trainer.errors import InvalidInput
from trainer.files.documents import read_document

if TYPE_CHECKING:
    from service.client import Classified


def embed(
    nodes: Annotated[Path, typer.Option(metavar="FILE", help='JSON: [{"id"?, "features": […], "edges": [id, …]}, …]')],
    ref: RefArgument = "latest",
    out: Annotated[Path | None, typer.Option(help="write the vectors to this npy file, a row per node")] = None,
    k: Annotated[int | None, typer.Option("--neighbors", min=1, max=1_000, help="and so many nearest nodes")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Embed nodes that were not in the graph, by their features and their edges to nodes that were.

    nml embed latest --nodes new.json --neighbors 10
    """
    asked = _new_nodes(nodes)
    with connected(url, key) as client:
        found = client.vectors.embed(ref, asked, neighbors=k)
    names = [position if name is None else name for position, name in enumerate(found.ids)]
    if out is not None:
        write_npy(out, found.vectors)
    if as_json:
        document = {"version": found.version, "ids": [*found.ids], "vectors": found.vectors.tolist()}
        near = {} if found.neighbors is None else {"results": neighbors_document(found.neighbors)["results"]}
        typer.echo(json.dumps(document | near))
        return
    if out is None and found.neighbors is None:
        print_vectors(names, found.vectors)
    if found.neighbors is not None:
        print_neighbors(found.neighbors)
    where = "" if out is None else f" are in {out}"
    say(f"{len(names)} × {found.vectors.shape[1]} float32 of the encoder of version {found.version}{where}")


def classify(
    labels: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV with the columns id and label; rows without a label do not count")
    ],
    ref: RefArgument = "latest",
    predict: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV with a column id; default: all nodes without a label")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write id, label and confidence to this CSV file")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the probe")] = 0,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Predict labels of nodes from labels of a few, by a linear probe on the vectors; prints CSV.

    nml classify latest --labels some.csv --out all.csv
    """
    rows = _columns(labels, "id", "label")
    given = {node: label for node, label in rows if label.strip()}
    if len(given) < len(rows):
        say(f"{labels}: {len(rows) - len(given):,} rows have no label and are left out")
    wanted = None if predict is None else [row[0] for row in _columns(predict, "id")]
    with connected(url, key) as client:
        found = client.vectors.classify(ref, given, wanted, seed=seed)
    text = _as_csv(found)
    if out is not None:
        _write(out, text)
    if as_json:
        typer.echo(json.dumps(found.document))
        return
    if out is None:
        typer.echo(text, nl=False)
    judged = "too few labels to judge it" if found.accuracy is None else f"accuracy {100 * found.accuracy:.2f} %"
    where = "" if out is None else f" in {out}"
    say(f"{len(found.ids):,} labels{where}, from {len(given):,}: {judged}. {found.protocol}")


def _new_nodes(path: Path) -> Sequence[Mapping[str, Any]]:
    document = read_document(path)
    nodes = document.get("nodes") if isinstance(document, dict) else document
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise InvalidInput(f'{path}: should be a list of nodes, each {{"features": […], "edges": […]}}')
    return nodes


def _columns(path: Path, *names: str) -> list[tuple[str, ...]]:
    """The named columns of a CSV file, row by row; other columns are left out.

    Raises:
        InvalidInput: it cannot be read, a column is missing, or an id is given twice.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in names if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInput(f"{path}: has no column {missing[0]}. Its first row must name {', '.join(names)}.")
            rows = [(reader.line_num, *(row[name] or "" for name in names)) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as CSV in UTF-8 ({error})") from error
    seen: set[str] = set()
    for line, node, *_ in rows:
        if node in seen:
            raise InvalidInput(f"{path}, row {line}: node {node} is there twice. Keep one of them.")
        seen.add(str(node))
    return [tuple(map(str, row[1:])) for row in rows]


def _as_csv(found: Classified) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", "label", "confidence"))
    for node, label, confidence in zip(found.ids, found.labels, found.confidence, strict=True):
        writer.writerow((node, label, f"{confidence:.6g}"))
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    from trainer.files.atomic import write_atomically

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8", newline="")

    try:
        write_atomically(path, write)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written ({error.strerror}). Name another file.") from error
