"""The paper's figures from cells: weights and estimates of mutual information while training, similarities, maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.paper.cells import MAPPED
from trainer.paper.tables import TITLES, Cells, done

_FN, _TN = "#d55e00", "#0072b2"  # apart for the colour-blind, too


def draw(cells: Cells, datasets: Sequence[str], folder: Path, row: str = "nml-official") -> list[Path]:
    """weights.png, estimates.png, similarities.png and maps.png of first seeds; returns those that had data."""
    first = _first(cells, datasets, row)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = ("false negatives", "true negatives")
    written = [
        _curves(first, ("weight_fn", "weight_tn"), kinds, "mean N·m", "weights", folder),
        _curves(first, ("i_nml", "i_nce"), ("I_NML", "I_NCE"), "estimate, nats", "estimates", folder),
        _histograms({"raw features": _first(cells, datasets, "features"), row: first}, folder),
        _maps({name: _first(cells, datasets, name) for name in MAPPED}, folder),
    ]
    return [path for path in written if path is not None]


def _first(cells: Cells, datasets: Sequence[str], row: str) -> dict[str, dict[str, Any]]:
    return {dataset: found[0] for dataset in datasets if (found := done(cells, dataset, row))}


def _axes(rows: int, columns: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (3.2 * columns, 2.6 * rows)
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")


def _curves(
    cells: dict[str, dict[str, Any]], keys: tuple[str, str], names: tuple[str, str], unit: str, file: str, folder: Path
) -> Path | None:
    there = {dataset: cell["curves"] for dataset, cell in cells.items() if all(key in cell["curves"] for key in keys)}
    if not there:
        return None
    figure, (axes,) = _axes(1, len(there))
    for axis, (dataset, curves) in zip(axes, there.items(), strict=True):
        for key, name, colour in zip(keys, names, (_FN, _TN), strict=True):
            axis.plot(curves["epoch"], curves[key], label=name, color=colour)
        axis.set(title=TITLES.get(dataset, dataset), xlabel="epoch", ylabel=unit)
    axes[0].legend(frameon=False, fontsize="small")
    return _saved(figure, folder / f"{file}.png")


def _histograms(rows: dict[str, dict[str, dict[str, Any]]], folder: Path) -> Path | None:
    """Cosines of negatives with their anchors, before and after: a line of pictures for each row that has cells."""
    rows = {name: cells for name, cells in rows.items() if cells}
    datasets = list(dict.fromkeys(dataset for cells in rows.values() for dataset in cells))
    if not datasets:
        return None
    figure, grid = _axes(len(rows), len(datasets))
    for axes, (name, cells) in zip(grid, rows.items(), strict=True):
        for axis, dataset in zip(axes, datasets, strict=True):
            if dataset not in cells:
                axis.set_axis_off()
                continue
            histogram = cells[dataset]["histogram"]
            edges = np.linspace(histogram["low"], histogram["high"], len(histogram["fn"]) + 1)
            for key, kind, colour in (("fn", "false negatives", _FN), ("tn", "true negatives", _TN)):
                axis.stairs(histogram[key], edges, label=kind, color=colour, fill=True, alpha=0.5)
            axis.set(title=f"{TITLES.get(dataset, dataset)}, {name}", xlabel="cosine with the anchor", ylabel="density")
    figure.legend(
        *next(axis for axis in grid.flat if axis.axison).get_legend_handles_labels(), loc="outside lower center"
    )
    return _saved(figure, folder / "similarities.png")


def _maps(rows: dict[str, dict[str, dict[str, Any]]], folder: Path) -> Path | None:
    """t-SNE of a sample of nodes, coloured by class."""
    there = [
        (dataset, name, cell["map"]) for name, cells in rows.items() for dataset, cell in cells.items() if "map" in cell
    ]
    if not there:
        return None
    figure, (axes,) = _axes(1, len(there))
    for axis, (dataset, name, points) in zip(axes, there, strict=True):
        x, y = zip(*points["xy"], strict=True)
        axis.scatter(x, y, c=points["label"], s=2, cmap="tab10", linewidths=0)
        axis.set(title=f"{TITLES.get(dataset, dataset)}, {name}", xticks=[], yticks=[])
    return _saved(figure, folder / "maps.png")


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path
