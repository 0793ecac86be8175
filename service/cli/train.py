"""`nml train`: from a data set, a preset or a spec file to a finished run directory."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated

import typer

from service.cli.progress import JsonLines, PlainLines, ProgressBar
from service.cli.report import print_result
from service.cli.spec_options import (
    Asked,
    FeaturesOption,
    IgnoreOption,
    MethodOption,
    PresetOption,
    assemble,
    column_overrides,
    file_overrides,
)
from trainer.callbacks import Callback
from trainer.config import TrainSpec, spec_hash

SPEC = "spec.json"  # in a run directory
EXIT_CODES = "Exit codes: 0 done, 2 usage, 3 invalid spec or data, 4 out of memory, 5 infrastructure, 6 cancelled."


def train(
    spec_file: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="JSON or YAML spec; or use the options")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="a name from `nml datasets`; default digits")] = None,
    method: MethodOption = None,
    preset: PresetOption = None,
    out: Annotated[Path | None, typer.Option(help="run directory; default runs/<data set>-<spec hash>")] = None,
    seed: Annotated[int | None, typer.Option(help="run.seed")] = None,
    epochs: Annotated[int | None, typer.Option(help="optimiser.epochs")] = None,
    nodes: Annotated[
        Path | None, typer.Option(help="node table of your own graph: CSV, TSV (also .gz) or Parquet; with --edges")
    ] = None,
    edges: Annotated[Path | None, typer.Option(help="edge table, likewise")] = None,
    features: FeaturesOption = None,
    ignore: IgnoreOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="override a field, e.g. method.temperature=0.4"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in --out by its own spec, or start it")
    ] = False,
    memory_limit: Annotated[
        str | None, typer.Option(help="memory to plan with, e.g. 4GB; default: most of the machine's or container's")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per event on standard output")] = False,
    show: Annotated[bool, typer.Option("--show-spec", help="print the spec as JSON and train nothing")] = False,
) -> None:
    """Train node embeddings and judge them.

    nml train --dataset cora --preset nml-official --out runs/cora
    nml train --nodes nodes.csv --edges edges.csv --ignore name --out runs/mine
    """
    from trainer.planning.memory import parse_size

    extra = file_overrides(nodes, edges, dataset) + column_overrides(features, ignore) + list(overrides or [])
    extra += [f"run.seed={seed}"] if seed is not None else []
    extra += [f"optimiser.epochs={epochs}"] if epochs is not None else []
    if resume and out is not None and not (spec_file or dataset or method or preset or nodes) and (out / SPEC).exists():
        spec_file = out / SPEC
    spec = assemble(Asked(spec_file, dataset, method, preset, extra))
    limit = None if memory_limit is None else parse_size(memory_limit)
    if show:
        typer.echo(spec.model_dump_json(indent=2))
        return
    directory = out or Path("runs") / f"{spec.data.name}-{spec_hash(spec)[:10]}"
    run_training(spec, directory, resume=resume, as_json=as_json, memory_limit=limit)


def run_training(
    spec: TrainSpec, directory: Path, *, resume: bool, as_json: bool, memory_limit: int | None = None
) -> None:
    """Train with progress on the terminal, lines in a pipe, or JSON for machines."""
    started = time.perf_counter()
    progress: Callback = JsonLines() if as_json else ProgressBar.if_terminal() or PlainLines()
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)  # what is merely informative goes to log.txt
    logging.basicConfig(handlers=[warnings], format="%(levelname)s %(message)s")
    from trainer.loop import fit
    from trainer.tracking import Tracker

    tracker = Tracker() if spec.run.track else None
    watching = [progress, *([tracker] if tracker else [])]
    result = fit(spec, directory, resume=resume, callbacks=watching, memory_limit=memory_limit)
    if not as_json:
        print_result(result.metrics, directory, tracker.summary() if tracker else None, time.perf_counter() - started)


train.__doc__ = f"{train.__doc__}\n\n{EXIT_CODES}"
