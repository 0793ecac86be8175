"""`nml estimate`: what a run would need and how it would be done, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from service.cli.report import result_console
from service.cli.spec_options import Asked, MethodOption, PresetOption, assemble


def estimate(
    spec_file: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="JSON or YAML spec; or use the options")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="a name from `nml datasets`; default digits")] = None,
    method: MethodOption = None,
    preset: PresetOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="override a field, e.g. encoder.hidden=256"),
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="memory to plan with, e.g. 4GB; default: most of the machine's or container's")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Tell how much memory a run needs, part by part, and how it would be planned. Loads no graph, trains nothing.

    nml estimate --dataset physics --memory-limit 4GB
    nml estimate --set data.name=synthetic --set data.synthetic.nodes=1000000

    Ends with code 4 if the run does not fit, however it is planned.
    """
    from trainer.planning.memory import parse_size, usable_memory
    from trainer.planning.plan import make_plan
    from trainer.planning.shape import shape_of_data

    spec = assemble(Asked(spec_file, dataset, method, preset, list(overrides or [])))
    limit = usable_memory() if memory_limit is None else parse_size(memory_limit)
    shape = shape_of_data(spec.data)
    plan = make_plan(spec, shape, limit).document()
    found = {"data": spec.data.name, "workers": spec.run.workers, "shape": asdict(shape), **plan}
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(found)


def _print(found: Mapping[str, Any]) -> None:
    from trainer.planning.plan import size

    console, shape, memory, sampling = result_console(), found["shape"], found["memory"], found["sampling"]
    filled = None if shape["nonzeros"] is None else shape["nonzeros"] / (shape["nodes"] * shape["features"])
    console.print(
        f"{found['data']}: {shape['nodes']:,} nodes, {shape['edges']:,} edges, {shape['features']:,} features "
        f"({'dense' if filled is None else f'{100 * filled:.1f} % not zero'})"
        f"{', read from disk by pieces' if shape['mapped'] else ''}. Known from {shape['note']}."
    )
    table = Table("part", "MB", "held", box=None)
    table.columns[1].justify = "right"
    for name, need in memory["parts"].items():
        if need:
            table.add_row(name, f"{need / 1e6:,.0f}", memory["held"][name])
    table.add_row("in all", f"{memory['total'] / 1e6:,.0f}", f"at most, while {memory['peak']}")
    console.print(table)
    each = f" in each of {found['workers']} processes" if found["workers"] > 1 else ""
    console.print(
        f"About {size(memory['total'])}{each}, apart from libraries most of it for {memory['largest']}. "
        f"The limit is {size(found['limit'])}."
    )
    batch = "all nodes" if sampling["batch_size"] is None else f"{sampling['batch_size']:,} nodes"
    neighbours = ", ".join("all" if k < 0 else str(k) for k in sampling["num_neighbors"] or [-1])
    console.print(
        f"Plan: negatives {sampling['negatives']}, batch {batch}, neighbours {neighbours}, tile {sampling['tile']}, "
        f"keep {sampling['keep_mb']} MB. Why: {found['reason']}."
    )
