"""How embeddings look in a notebook: a line, a few figures and a small map. One piece of HTML, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

POINTS = 400  # drawn at most, evenly spread over the rows
_WIDTH, _HEIGHT, _MARGIN = 360, 240, 8
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#7F7F7F")  # Okabe & Ito


def card(
    title: str, vectors: NDArray[np.float32], ids: NDArray[Any], labels: NDArray[Any] | None, metrics: Mapping[str, Any]
) -> str:
    """HTML; labels: [N] text, empty where there is none, by which points are coloured."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(POINTS, len(vectors))).astype(np.int64))
    points = plane(np.array(vectors[rows], dtype=np.float64))
    shown = [str(ids[row]) for row in rows]
    classes = None if labels is None else [str(labels[row]) for row in rows]
    colours = _colours(classes, len(rows))
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"><title>{escape(name)}'
        f"{'' if classes is None or not classes[at] else ': ' + escape(classes[at])}</title></circle>"
        for at, ((x, y), colour, name) in enumerate(zip(points, colours, shown, strict=True))
    )
    return (
        f"<div><div><b>{escape(title)}</b></div><div>{escape(_figures(metrics))}</div>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="map of the embeddings" '
        f'style="background:#fff;border:1px solid #ccc">{dots}</svg>'
        f"<div><small>principal components of {len(rows)} of {len(vectors)} nodes</small></div></div>"
    )


def plane(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first two principal components of rows, inside the map.  [n, dim] -> [n, 2]."""
    centred = vectors - vectors.mean(0)
    u, scale, _ = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(vectors), 2))
    flat[:, : min(2, len(scale))] = (u * scale)[:, :2]
    low, high = flat.min(0), flat.max(0)
    share = (flat - low) / np.where(high > low, high - low, 1)
    inside: NDArray[np.float64] = _MARGIN + share * (np.array([_WIDTH, _HEIGHT]) - 2 * _MARGIN)
    return inside


def _colours(classes: list[str] | None, points: int) -> list[str]:
    if classes is None:
        return [_COLOURS[0]] * points
    number = {name: at for at, name in enumerate(sorted({name for name in classes if name}))}
    return [_COLOURS[number[name] % len(_COLOURS)] if name else "#bbb" for name in classes]


def _figures(metrics: Mapping[str, Any]) -> str:
    said = [f"{metrics['nodes']:,} nodes, {metrics['edges']:,} edges, {metrics['train_seconds']:.1f} s of training"]
    probe = (metrics.get("eval") or {}).get("probe") or {}
    if isinstance(probe.get("test"), int | float):
        said.append(f"linear probe {probe['test']:.3f} on test labels")
    return "; ".join(said)
