"""`nml evaluate`, `nml presets`: look at what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from service.cli.report import print_quality, result_console
from trainer.presets import PRESETS, PUBLISHED, preset_spec


def evaluate(
    run: Annotated[Path, typer.Argument(help="a finished run directory")],
    protocol: Annotated[str | None, typer.Option(help="clean or pygcl_swap; default: the run's own")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Judge the embeddings of a finished run again. The run itself is not changed."""
    from trainer.evaluation.evaluate import evaluate_run

    quality = evaluate_run(run, protocol=protocol)
    if as_json:
        typer.echo(json.dumps(quality, indent=2))
    else:
        print_quality(quality, result_console())


def presets(
    name: Annotated[str | None, typer.Argument(help="print this preset's whole spec")] = None,
    dataset: Annotated[str, typer.Option(help="data set the spec is for")] = "cora",
) -> None:
    """List the presets, or print one as JSON that `nml train SPEC` takes."""
    if name is not None:
        typer.echo(preset_spec(name, dataset).model_dump_json(indent=2))
        return
    table = Table("preset", "data set", "T_E", "T_M", "τ", "KL coefficient", "lr", "weight decay", "metric", box=None)
    for preset in PRESETS:
        for data in (["digits"] if preset == "nml" else []) + list(PUBLISHED):
            spec = preset_spec(preset, data)
            reg = spec.objective.reg
            unit = "α = {:g}, times N−1" if reg.scale == "n_minus_1" else "a = {:g} in all"
            table.add_row(
                preset, data, str(spec.optimiser.epochs), str(spec.objective.inner_steps),
                f"{spec.objective.temperature:g}", unit.format(reg.coefficient), f"{spec.optimiser.lr:g}",
                f"{spec.optimiser.weight_decay:g}", spec.metric.kind,
            )  # fmt: skip
    result_console().print(table)
