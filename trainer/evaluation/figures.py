"""The pictures of a run: losses, information estimates, weights of negatives, similarities and a map of the nodes.

Drawn on `Figure` objects with the Agg canvas: no pyplot, so nothing global and nothing that needs a display.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from trainer.evaluation.pairs import pair_statistics
from trainer.evaluation.rows import Rows

# Okabe & Ito's palette, which colour-blind readers can tell apart; black is for text.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", "#F0E442", "#7F7F7F")
MARKERS = ("o", "^", "s", "D")  # the palette repeats with the next shape
NAMED_CLASSES = 12  # more would not fit a legend
PAIR_NODES = 10_000  # enough for a histogram; the exact figures are in metrics.json

History = Sequence[Mapping[str, Any]]


def draw_all(
    directory: Path,
    *,
    history: History,
    before: np.ndarray | None,
    after: np.ndarray,
    y: np.ndarray | torch.Tensor | None,
    classes: Sequence[str] = (),
    max_points: int = 3_000,
    seed: int = 0,
) -> list[Path]:
    """Draw every figure there is data for into `directory`; returns the files written.

    history: one {"epoch", "metrics"} per epoch, keys of metrics may be missing in some; before, after: embeddings
    [N, d] of the untrained (if kept) and the trained encoder, of which only samples are read, so they may be memory
    maps larger than memory; y: [N], -1 for unlabelled nodes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    labels = None if y is None else np.asarray(y)
    if labels is not None and not (labels >= 0).any():
        labels = None
    figures = {
        "loss.png": draw_loss(history),
        "mi.png": draw_information(history),
        "weights.png": draw_weights(history),
        "similarity.png": None if labels is None else draw_similarity(before, after, labels, seed),
        "map.png": draw_map(after, labels, classes, max_points, seed),
    }
    return [_save(figure, directory / name) for name, figure in figures.items() if figure is not None]


def draw_loss(history: History) -> Figure | None:
    """The two parts of the objective, each on its own axes: they differ by orders of magnitude."""
    parts = [
        ("nml", "L$_{NML}$ (contrast)", BLUE),
        ("reg", "L$_{reg}$ = a · KL(P$_0$ ‖ P$_i$)", ORANGE),
    ]
    series = [(label, colour, *_series(history, key)) for key, label, colour in parts]
    series = [item for item in series if len(item[2])]
    if not series:
        return None
    figure = _figure(6, 4)
    all_axes = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, colour, epochs, values) in zip(all_axes, series, strict=True):
        _line(axes, epochs, values, label, colour)
        _tidy(axes, xlabel="epoch" if axes is all_axes[-1] else None)
        axes.set_title(label, loc="left", fontsize=10)
    figure.suptitle("Training objective by epoch")
    return figure


def draw_information(history: History) -> Figure | None:
    """I_NML and I_NCE. Neither is drawn as a bound: with learned weights it is none (methods 2.4-E)."""
    curves = [("i_nml", "I$_{NML}$ estimate", BLUE), ("i_nce", "I$_{NCE}$ estimate", ORANGE)]
    return _curves(history, curves, "Mutual information of the two views (estimates)", "nats")


def draw_weights(history: History) -> Figure | None:
    """Mean N·m by kind of pair, or its spread where there are no labels."""
    curves = [
        ("weight_fn", "false negatives (same class)", ORANGE),
        ("weight_tn", "true negatives (other class)", BLUE),
        ("weight_self", "the node itself", GREEN),
    ]
    title, ylabel = "Mean weight of a negative, by kind of pair", "mean N·m"
    if not len(_series(history, "weight_fn")[0]):
        curves = [
            ("weight_max", "largest", ORANGE),
            ("weight_min", "smallest", BLUE),
            ("weight_self", "the node itself (mean)", GREEN),
            ("weight_std", "standard deviation", PURPLE),
        ]
        title, ylabel = "Spread of the weights of negatives (no labels)", "N·m"
    return _curves(history, curves, title, ylabel, reference=(1.0, "uniform weights"))


def draw_similarity(before: np.ndarray | None, after: np.ndarray, y: np.ndarray, seed: int) -> Figure | None:
    """Densities of the cosines of false and true negatives, before and after training."""
    panels = [("after training", after)] if before is None else [("before training", before), ("after training", after)]
    figure = _figure(3.4 * len(panels) + 1.2, 4)
    all_axes = figure.subplots(1, len(panels), sharex=True, squeeze=False)[0]
    lowest = 1.0
    for axes, (title, z) in zip(all_axes, panels, strict=True):
        figures = pair_statistics(z, torch.tensor(y), max_nodes=PAIR_NODES, seed=seed)
        ratio = figures["distance_ratio"]
        edges = np.linspace(-1, 1, len(figures["histogram"]["fn"]) + 1)
        for kind, label, colour in (("fn", "same class (FN)", ORANGE), ("tn", "different class (TN)", BLUE)):
            density = np.array(figures["histogram"][kind])
            axes.stairs(density, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(density, edges, color=colour, linewidth=1.6, label=label)
            if density.any():
                lowest = min(lowest, edges[np.searchsorted(density.cumsum(), 0.002 * density.sum())])
        about = "≈ " if figures["sampled"] else ""
        shown = "" if ratio is None else f"\ndistance ratio {about}{ratio:.0f} %"
        axes.set_title(title + shown, fontsize=11)
        _tidy(axes, xlabel="cosine similarity of a pair")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(6))
    all_axes[0].set_xlim(max(-1.0, lowest - 0.1), 1.0)
    all_axes[0].set_ylabel("density")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle("Similarity of negative pairs")
    return figure


def draw_map(z: np.ndarray, y: np.ndarray | None, classes: Sequence[str], max_points: int, seed: int) -> Figure | None:
    """t-SNE of a seeded sample of unit embeddings, coloured by class."""
    if len(z) < 5:
        return None
    chosen = np.random.default_rng(seed).permutation(len(z))[:max_points]
    points = _flatten(Rows.of(z, torch.float32).take(torch.from_numpy(chosen)).numpy(), seed)
    figure = _figure(6.6, 4.8)
    axes = figure.subplots()
    style: dict[str, Any] = {"s": 36 / max(1, len(chosen) / 250) ** 0.5, "linewidths": 0, "alpha": 0.8}
    if y is None:
        axes.scatter(*points.T, color=BLUE, **style)
    else:
        label = y[chosen]
        if (label < 0).any():
            axes.scatter(*points[label < 0].T, color="0.8", label="no label", **style)
        present = np.unique(label[label >= 0])
        for place, value in enumerate(present):
            name = classes[value] if value < len(classes) else str(value)
            look = style | {"color": PALETTE[place % 8], "marker": MARKERS[place // 8 % 4]}
            axes.scatter(*points[label == value].T, label=_short(name), **look)
        if len(present) <= NAMED_CLASSES:
            figure.legend(loc="outside right center", frameon=False, fontsize=9, markerscale=2, title="class")
    of = "" if len(chosen) == len(z) else f" of {len(z):,}"
    axes.set_title(f"Map of {len(chosen):,}{of} node embeddings (t-SNE)")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("0.8")
    axes.set_aspect("equal", "datalim")
    return figure


def _flatten(z: np.ndarray, seed: int) -> np.ndarray:
    """[n, d] -> [n, 2]: unit rows, PCA to at most 50 dimensions, t-SNE."""
    unit = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    if np.ptp(unit, axis=0).max() < 1e-6:
        return np.zeros((len(z), 2))  # collapsed: every node on one spot, and t-SNE would divide by zero
    reduced = PCA(min(50, *unit.shape), random_state=seed).fit_transform(unit)
    perplexity = min(30.0, (len(z) - 1) / 3)
    start = "pca" if reduced.shape[1] >= 2 else "random"
    tsne = TSNE(2, perplexity=perplexity, init=start, max_iter=500, random_state=seed)  # half the default, same picture
    return np.asarray(tsne.fit_transform(reduced))


def _curves(
    history: History,
    curves: list[tuple[str, str, str]],
    title: str,
    ylabel: str,
    reference: tuple[float, str] | None = None,
) -> Figure | None:
    """Several metrics by epoch on one pair of axes, with a dashed level; None if the history has none of them."""
    found = [(label, colour, *_series(history, key)) for key, label, colour in curves]
    found = [item for item in found if len(item[2])]
    if not found:
        return None
    figure = _figure(6, 4)
    axes = figure.subplots()
    for label, colour, epochs, values in found:
        _line(axes, epochs, values, label, colour)
    if reference is not None:
        axes.axhline(reference[0], color="0.35", linewidth=1, linestyle=(0, (4, 3)), label=reference[1], zorder=1)
    axes.set_title(title)
    _tidy(axes, xlabel="epoch", ylabel=ylabel)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _figure(width: float, height: float) -> Figure:
    """An empty figure, inches, whose parts make room for each other."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def _series(history: History, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs that have a finite value of the metric, and the values."""
    pairs = [(item["epoch"], item["metrics"].get(key)) for item in history]
    kept = [(epoch, value) for epoch, value in pairs if value is not None and np.isfinite(value)]
    return np.array([epoch for epoch, _ in kept]), np.array([value for _, value in kept])


def _line(axes: Axes, epochs: np.ndarray, values: np.ndarray, label: str, colour: str) -> None:
    marker = "o" if len(epochs) <= 20 else None  # a single epoch has no line
    axes.plot(epochs, values, color=colour, label=label, linewidth=1.8, marker=marker, markersize=4)
    if len(epochs) == 1:
        axes.set_xlim(epochs[0] - 1, epochs[0] + 1)  # else matplotlib shows fractions of an epoch


def _tidy(axes: Axes, *, xlabel: str | None = None, ylabel: str | None = None) -> None:
    """Light grid behind the data, no box, whole epochs."""
    axes.set_axisbelow(True)
    axes.grid(color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("0.6")
    axes.tick_params(color="0.6", labelsize=9)
    if xlabel == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if xlabel:
        axes.set_xlabel(xlabel)
    if ylabel:
        axes.set_ylabel(ylabel)


def _short(name: str, length: int = 24) -> str:
    """A class name for a legend; $ would start a formula and a leading _ would hide the entry."""
    cut = name if len(name) <= length else name[: length - 1] + "…"
    return cut.replace("$", r"\$").lstrip("_") or "?"


def _save(figure: Figure, path: Path) -> Path:
    """Write the PNG whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".png")
    os.close(handle)
    try:
        FigureCanvasAgg(figure)
        figure.savefig(temporary, dpi=150, format="png")
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner reads
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
