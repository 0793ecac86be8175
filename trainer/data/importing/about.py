"""What people want to know of a graph that was imported: counts, features, classes and how its degrees are spread.

Read from the files in pieces, without torch: a graph of any size is described in little memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest import read_manifest
from trainer.files.mapped import pieces, release

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
SHOWN_CLASSES = 100  # names told; a graph may have a class per node


def describe(directory: Path) -> dict[str, Any]:
    """Counts and figures of a stored graph, JSON. Degrees count edges into a node, as stored.

    Raises:
        InvalidInput: there is no graph.
    """
    manifest = read_manifest(directory)
    arrays: dict[str, Any] = manifest["arrays"]
    stored = arrays.get("x_values")
    return {
        "nodes": manifest["num_nodes"],
        "edges": manifest["num_edges"],
        "features": manifest["num_features"],
        "classes": len(manifest["classes"]),
        "class_names": manifest["classes"][:SHOWN_CLASSES],
        "sparse": stored is not None,
        "nonzeros": None if stored is None else stored["shape"][0],
        "weighted": "weight" in arrays,
        "ids": "text" if arrays["ids"]["dtype"][1] == "U" else "integer",
        "degree": degree_figures(_map(directory, "indptr"), _map(directory, "indices")),
        "bytes": sum(path.stat().st_size for path in directory.glob("*.npy")),
        "fingerprint": manifest["fingerprint"],
        "notes": manifest["notes"],
    }


def degree_figures(indptr: NDArray[np.int64], indices: NDArray[np.int64]) -> dict[str, Any]:
    """Degrees of nodes as compressed rows.  indptr: [N + 1], indices: [E], both perhaps memory-mapped; N > 0.

    Quantiles interpolate between nodes, as numpy's do. Isolated nodes have an edge in neither direction.
    """
    values, counts = _distinct_degrees(indptr)
    nodes = int(counts.sum())
    upto = np.cumsum(counts)

    def quantile(share: float) -> float:
        """From the sorted degrees, which are never written out: the one at `place` if that is whole."""
        place = share * (nodes - 1)
        low = int(place)
        one, other = values[np.searchsorted(upto, [low, min(low + 1, nodes - 1)], side="right")]
        return float(one + (place - low) * (other - one))

    return {
        "min": int(values[0]),
        "median": quantile(0.5),
        "mean": len(indices) / nodes,
        "max": int(values[-1]),
        "isolated": _isolated(indptr, indices) if values[0] == 0 else 0,
        "quantiles": {f"{share:g}": quantile(share) for share in QUANTILES},
    }


def _distinct_degrees(indptr: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each degree that occurs, ascending, and how often: about √(2E) of them at most."""
    found: dict[int, int] = {}
    last = indptr[:1]
    for piece in pieces(indptr[1:]):
        degrees = np.diff(np.concatenate([last, piece]))
        last = np.array(piece[-1:])
        for degree, count in zip(*(part.tolist() for part in np.unique(degrees, return_counts=True)), strict=True):
            found[degree] = found.get(degree, 0) + count
        release(indptr)
    values = np.array(sorted(found), dtype=np.int64)
    return values, np.array([found[int(value)] for value in values], dtype=np.int64)


def _isolated(indptr: NDArray[np.int64], indices: NDArray[np.int64]) -> int:
    touched = np.zeros(len(indptr) - 1, dtype=np.bool_)
    for piece in pieces(indices):
        touched[piece] = True
        release(indices)
    start = 0
    last = indptr[:1]
    for piece in pieces(indptr[1:]):
        touched[start : start + len(piece)] |= np.diff(np.concatenate([last, piece])) > 0
        start, last = start + len(piece), np.array(piece[-1:])
        release(indptr)
    return len(touched) - int(touched.sum())


def _map(directory: Path, key: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(directory / f"{key}.npy", mmap_mode="r", allow_pickle=False)
    return array
