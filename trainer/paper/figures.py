"""The paper's figures from cells: weights, similarities and estimates of mutual information while training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.paper.tables import TITLES, Cells, done

_FN, _TN = "#d55e00", "#0072b2"  # apart for the colour-blind, too


def draw(cells: Cells, datasets: Sequence[str], folder: Path, row: str = "nml-official") -> list[Path]:
    """weights.png, estimates.png and similarities.png of a row's first seeds; returns those that had data."""
    first = {dataset: found[0] for dataset in datasets if (found := done(cells, dataset, row))}
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        _curves(
            first, ("weight_fn", "weight_tn"), ("false negatives", "true negatives"), "mean N·m", "weights", folder
        ),
        _curves(first, ("i_nml", "i_nce"), ("I_NML", "I_NCE"), "estimate, nats", "estimates", folder),
        _histograms(first, folder),
    ]
    return [path for path in written if path is not None]


def _axes(count: int) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(3.2 * count, 2.6), squeeze=False, layout="constrained")
    return figure, list(axes[0])


def _curves(
    cells: dict[str, dict[str, Any]], keys: tuple[str, str], names: tuple[str, str], unit: str, file: str, folder: Path
) -> Path | None:
    there = {dataset: cell["curves"] for dataset, cell in cells.items() if all(key in cell["curves"] for key in keys)}
    if not there:
        return None
    figure, axes = _axes(len(there))
    for axis, (dataset, curves) in zip(axes, there.items(), strict=True):
        for key, name, colour in zip(keys, names, (_FN, _TN), strict=True):
            axis.plot(curves["epoch"], curves[key], label=name, color=colour)
        axis.set(title=TITLES.get(dataset, dataset), xlabel="epoch", ylabel=unit)
    axes[0].legend(frameon=False, fontsize="small")
    return _saved(figure, folder / f"{file}.png")


def _histograms(cells: dict[str, dict[str, Any]], folder: Path) -> Path | None:
    if not cells:
        return None
    figure, axes = _axes(len(cells))
    for axis, (dataset, cell) in zip(axes, cells.items(), strict=True):
        histogram = cell["histogram"]
        edges = np.linspace(histogram["low"], histogram["high"], len(histogram["fn"]) + 1)
        for key, name, colour in (("fn", "false negatives", _FN), ("tn", "true negatives", _TN)):
            axis.stairs(histogram[key], edges, label=name, color=colour, fill=True, alpha=0.5)
        axis.set(title=TITLES.get(dataset, dataset), xlabel="cosine with the anchor", ylabel="density")
    axes[0].legend(frameon=False, fontsize="small")
    return _saved(figure, folder / "similarities.png")


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path
