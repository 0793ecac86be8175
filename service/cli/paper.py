"""`nml paper`: the tables and figures of the NML-GCL paper, computed again, a cell at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trainer.errors import InvalidInput


def paper(
    datasets: Annotated[
        list[str] | None, typer.Option("--datasets", help="data sets; default cora and citeseer")
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--methods", help="rows by name, e.g. grace; default: all")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--tables", help="rows by group: methods, ablations, alpha, t_m")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="training seeds 0, 1, … of each cell")] = 5,
    budget_minutes: Annotated[float | None, typer.Option(help="stop after so long; the next call goes on")] = None,
    out: Annotated[Path, typer.Option(help="where cells, figures and paper.md are kept")] = Path("docs/results"),
    runs: Annotated[Path, typer.Option(help="where unfinished runs are kept")] = Path("runs/paper"),
    figures: Annotated[bool, typer.Option("--figures", help="draw the figures too")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="compute nothing, write the page from what there is")
    ] = False,
) -> None:
    """Compute the paper's tables with every method here, and write them beside the paper's own numbers.

    Each finished run is a small JSON file; what is there is not computed again. Options that take several values are
    repeated: --datasets cora --datasets photo. Needs the public data sets under NML_DATA.
    """
    from trainer.paper.cells import cells_of, compute
    from trainer.paper.report import read_cells, write_report
    from trainer.paper.rows import DATASETS, choose_rows

    chosen = datasets or ["cora", "citeseer"]
    for name in chosen:
        if name not in DATASETS:
            raise InvalidInput(f"the paper has no data set {name!r}; choose from {', '.join(DATASETS)}")
    rows = choose_rows(methods, tables)
    if not report:
        deadline = None if budget_minutes is None else time.monotonic() + 60 * budget_minutes
        missing = [cell for cell in cells_of(chosen, rows, seeds) if cell.read(out / "cells") is None]
        for number, cell in enumerate(missing, 1):
            started = time.monotonic()
            if (deadline is not None and started >= deadline) or not compute(
                cell, out / "cells", runs, deadline=deadline, say=typer.echo
            ):
                typer.echo(f"time is up; {len(missing) - number + 1} cells are left")
                break
            seconds = time.monotonic() - started
            typer.echo(f"[{number}/{len(missing)}] {cell.dataset} {cell.row.name} seed {cell.seed}: {seconds:.0f} s")
    pictures = []
    if figures:
        from trainer.paper.figures import draw

        pictures = draw(read_cells(out / "cells"), chosen, out / "figures")
    typer.echo(f"wrote {write_report(out, pictures)}")
