"""Results for people: what was measured, under which protocol, and where the files are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_result(
    metrics: Mapping[str, Any], directory: Path, tracking: Mapping[str, Any] | None, seconds: float
) -> None:
    """The closing table of `nml train`."""
    console = Console(highlight=False, soft_wrap=True)
    print_quality(metrics["eval"], console)
    active = metrics["train"].get("weight_active")
    if active is not None:
        fn, tn = (metrics["train"].get(f"weight_{name}") for name in ("fn", "tn"))
        mean = f" (mean N·m {fn:.3f} on false, {tn:.3f} on true negatives)" if fn is not None and tn is not None else ""
        console.print(f"The metric {'acts' if active else 'is inactive: all weights are equal within 2 %'}{mean}.")
    console.print(f"{metrics['epoch']} epochs in {seconds:.0f} s. Everything is in {directory}")
    if tracking is not None:
        if tracking["error"]:
            console.print(
                f"MLflow was unreachable ({tracking['error']}): training is complete, "
                f"{tracking['dropped']} metric points were not sent."
            )
        else:
            console.print(f"MLflow run {tracking['run_id']} in experiment {tracking['experiment']}.")


def print_quality(quality: Mapping[str, Any], console: Console) -> None:
    """One row per figure of evaluate()."""
    table = Table("figure", "value", box=None)
    probe, clustering, pairs = quality.get("probe"), quality.get("clustering"), quality.get("pairs")
    if probe:
        table.add_row("probe accuracy, test", f"{100 * probe['test']:.2f} %")
        table.add_row("probe accuracy, validation", f"{100 * probe['val']:.2f} %")
    if clustering:
        for name in ("fmi", "ari", "nmi"):
            mean, std = clustering[name]["mean"], clustering[name]["std"]
            table.add_row(f"k-means {name.upper()}", f"{100 * mean:.2f} ± {100 * std:.2f} %")
    if pairs:
        table.add_row("false/true negative distance", f"{pairs['distance_ratio']:.2f} %")
    for name, value in quality["geometry"].items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    console.print(table)
    if quality.get("unlabelled_reason"):
        console.print(f"No label-based figures: {quality['unlabelled_reason']}")
    console.print(f"protocol: {quality['protocol']}", markup=False)
