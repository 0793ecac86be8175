"""`nml datasets`: list the graphs that can be named, import one of any size, check what was imported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from service.cli.connect import say
from service.cli.push import push
from service.cli.pushed import pushed, unpush
from service.cli.report import result_console
from service.cli.spec_options import FeaturesOption, IgnoreOption, column_overrides
from service.discarded import discard
from trainer.config import parse_spec
from trainer.errors import InvalidInput
from trainer.files.documents import apply_overrides
from trainer.spec.data import DataSpec

app = typer.Typer(
    help="List the graphs that can be named; import your own; check imported ones; send one to the service, see what "
    "it has, and remove one."
)
for _command in (push, pushed, unpush):
    app.command(_command.__name__)(_command)
MEMORY_MB = 256  # for buffers; more makes sorting billions of edges quicker, nothing else


@app.callback(invoke_without_command=True)
def list_all(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="print the list as JSON")] = False
) -> None:
    """List the graphs that can be named: `nml train --dataset NAME`."""
    if context.invoked_subcommand is not None:
        return
    from trainer.data.datasets import catalog

    entries = [asdict(entry) for entry in catalog()]
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    table = Table(*entries[0], box=None)
    for entry in entries:
        table.add_row(
            *("–" if value is None else f"{value:,}" if type(value) is int else str(value) for value in entry.values())
        )
    result_console().print(table)


@app.command("import")
def import_(
    name: Annotated[str, typer.Argument(help="what to call the graph: letters, digits, dots, dashes, underscores")],
    nodes: Annotated[Path | None, typer.Option(help="node table, CSV, TSV (also .gz) or Parquet, of any size")] = None,
    edges: Annotated[Path | None, typer.Option(help="edge table, likewise")] = None,
    npz: Annotated[Path | None, typer.Option(help="one npz file; it must fit in memory")] = None,
    dataset: Annotated[str | None, typer.Option(help="a name from `nml datasets`")] = None,
    features: FeaturesOption = None,
    ignore: IgnoreOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a field of data, e.g. data.files.id_column=key"),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="take the place of an imported graph of that name")
    ] = False,
    memory: Annotated[int, typer.Option(min=64, help="MB for buffers; on top come 16-40 bytes per node")] = MEMORY_MB,
    as_json: Annotated[bool, typer.Option("--json", help="print what was written as JSON")] = False,
) -> None:
    """Store a graph as memory-mapped arrays in NML_HOME/graphs/NAME, to train on it without loading it.

    nml datasets import papers --nodes papers.parquet --edges citations.csv --set data.files.id_column=doi
    """
    spec = assemble(nodes, edges, npz, dataset, column_overrides(features, ignore) + list(overrides or []))
    from trainer.data.importing.graph import import_graph
    from trainer.data.manifest import read_manifest

    with _progress() as progress:
        place = import_graph(spec, name, replace=replace, memory=memory << 20, progress=progress)
    manifest = read_manifest(place)
    size = sum(path.stat().st_size for path in place.iterdir())
    written = {"name": name, "directory": str(place), "bytes": size} | {
        key: manifest[key] for key in ("num_nodes", "num_edges", "num_features", "classes", "notes", "fingerprint")
    }
    if as_json:
        typer.echo(json.dumps(written, indent=2, ensure_ascii=False))
    else:
        _print_written(written, sparse="x_values" in manifest["arrays"])


@app.command()
def remove(name: Annotated[str, typer.Argument(help="a graph that was imported")]) -> None:
    """Remove an imported graph from this machine. Runs keep their embeddings, but can no longer be evaluated again."""
    from trainer.data.datasets import find_imported
    from trainer.files.whole_directory import sole_writer
    from trainer.process.home import nml_home

    place = find_imported(name, nml_home())
    if (place / "about.json").exists():
        raise InvalidInput(
            f"{name} was uploaded to a service that runs here; remove it with `nml datasets unpush {name}`"
        )
    with sole_writer(place):
        discard(place)
    say(f"The graph {name} is removed.")


@app.command()
def verify(name: Annotated[str, typer.Argument(help="a graph that was imported")]) -> None:
    """Read every file of an imported graph and compare it with its checksum."""
    from trainer.data import store
    from trainer.data.datasets import find_imported
    from trainer.process.home import nml_home

    place = find_imported(name, nml_home())
    with _progress() as progress:
        store.verify(place, progress=progress)
    typer.echo(f"{place}: every file is what was written.")


def assemble(
    nodes: Path | None, edges: Path | None, npz: Path | None, dataset: str | None, overrides: list[str]
) -> DataSpec:
    """The `data` section that the options describe.

    Raises:
        InvalidInput: no source, more than one, or a field that is not of `data`.
    """
    files = {key: str(path) for key, path in (("nodes", nodes), ("edges", edges), ("npz", npz)) if path is not None}
    if bool(files) == (dataset is not None):
        raise InvalidInput("give one source: --nodes and --edges, --npz, or --dataset")
    data: dict[str, Any] = {"name": dataset} if dataset is not None else {"name": "files", "files": files}
    document = apply_overrides({"data": data}, overrides)
    if set(document) != {"data"}:
        other = ", ".join(sorted(set(document) - {"data"}))
        raise InvalidInput(f"{other}: an import takes only fields of data, such as data.files.id_column")
    return parse_spec(document).data


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None] | None]:
    """A bar per step on standard error if that is a terminal, else nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn("[bold]{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, share: float) -> None:
            if what not in tasks:
                for task in tasks.values():  # one step begins when the one before is done
                    bars.update(task, completed=1.0)
                    bars.stop_task(task)
                tasks[what] = bars.add_task(what, total=1.0)
            bars.update(tasks[what], completed=share)

        yield show


def _print_written(written: dict[str, Any], *, sparse: bool) -> None:
    console = result_console()
    table = Table(box=None, show_header=False)
    table.add_row("nodes", f"{written['num_nodes']:,}")
    table.add_row("edges", f"{written['num_edges']:,} (directed, as stored)")
    table.add_row("features", f"{written['num_features']:,} ({'sparse' if sparse else 'dense'})")
    table.add_row("classes", f"{len(written['classes']):,}")
    table.add_row("size", f"{written['bytes'] / 1e6:,.1f} MB")
    table.add_row("fingerprint", written["fingerprint"])
    console.print(table)
    for note in written["notes"]:
        console.print(note, markup=False)
    console.print(f"Stored in {written['directory']}. Train on it with", markup=False)
    console.print(f"  nml train --dataset {written['name']}", markup=False)
