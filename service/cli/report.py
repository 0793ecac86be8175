"""Results for people: what was measured, under which protocol, and where the files are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console
from rich.table import Table


def result_console() -> Console:
    """Standard output; in a pipe, wide enough that no table folds."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=200)


def print_result(
    metrics: Mapping[str, Any], directory: Path, tracking: Mapping[str, Any] | None, seconds: float
) -> None:
    """The closing table of `nml train`."""
    console = result_console()
    if metrics["eval"] is None:
        _print_watched(metrics["train"], console)
        spec, out = quote(str(directory / "spec.json")), quote(str(directory))
        console.print(
            "Neither exported nor judged: run.export is false. To do both from the last checkpoint:\n"
            f"nml train {spec} --set run.export=true --resume --out {out}",
            markup=False,
        )
    else:
        print_quality(metrics["eval"], console)
    if "weight_active" in metrics["train"]:
        from trainer.loss.weights import describe_activity

        console.print(describe_activity(metrics["train"]))
    console.print(f"{metrics['epoch']} epochs in {seconds:.0f} s. Everything is in {directory}")
    if tracking is not None:
        if tracking["error"]:
            console.print(
                f"Training is complete, but MLflow was not told everything ({tracking['error']}). To send the rest "
                f"later: python -m trainer.tracking {quote(str(directory))}",
                markup=False,
            )
        else:
            from trainer.tracking import ui_command

            console.print(
                f"MLflow run {tracking['run_id']} in experiment {tracking['experiment']}. Look: {ui_command()}"
            )


def _print_watched(figures: Mapping[str, Any], console: Console) -> None:
    """What was seen of the embedding in the last epoch, if anything was."""
    table = Table("figure", "value", box=None)
    if "val_accuracy" in figures:
        table.add_row("probe accuracy, validation", f"{100 * figures['val_accuracy']:.2f} %")
    if "link_auc" in figures:
        table.add_row("AUC on held-out edges", f"{figures['link_auc']:.4f}")
    if table.row_count:
        console.print(table)


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
    if pairs and pairs["distance_ratio"] is not None:
        table.add_row("false/true negative distance", f"{pairs['distance_ratio']:.2f} %")
    links = quality.get("links")
    if links and links["auc"] is not None:
        table.add_row("AUC on held-out edges", f"{links['auc']:.4f}")
    for name, value in quality["geometry"].items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    console.print(table)
    if quality.get("unlabelled_reason"):
        console.print(f"No label-based figures: {quality['unlabelled_reason']}")
    if links and links["auc"] is None:
        console.print(f"No AUC on held-out edges: {links['reason']}")
    console.print(_protocol_line(quality["protocol"]), markup=False)
    sampled = _sample_line(quality["protocol"])
    if sampled:
        console.print(sampled, markup=False)


def _protocol_line(protocol: Mapping[str, Any]) -> str:
    """The protocol in one line; metrics.json has the rest."""
    split = protocol["split"]
    if split is None:
        return f"Protocol {protocol['name']}, seed {protocol['seed']}; details in metrics.json."
    sizes = "/".join(str(size) for size in protocol["split_sizes"].values())
    return (
        f"Protocol {protocol['name']}, {split} split ({sizes} nodes), seed {protocol['seed']}; details in metrics.json."
    )


def _sample_line(protocol: Mapping[str, Any]) -> str | None:
    """What was judged on samples, and of how many nodes or edges; None if everything was judged in full."""
    parts = []
    for name, key in (("probe", "probe"), ("k-means", "clustering"), ("distances", "pairs")):
        about = protocol[key]
        if about.get("sampled"):
            kinds = about.get("nodes", {"labelled": about})
            sizes = [(kind, of["used"], of["available"]) for kind, of in kinds.items()]
            shown = [f"{used:,} of {available:,} {kind}" for kind, used, available in sizes if used < available]
            parts.append(f"{name} {' and '.join(shown)} nodes")
    links = protocol.get("links")
    if links and links["sampled"]:
        parts.append(f"AUC {links['used']:,} of {links['available']:,} held-out edges")
    return f"Seeded samples: {'; '.join(parts)}." if parts else None
