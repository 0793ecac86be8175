"""The built-in set: scikit-learn's handwritten digits as a graph, so that a first run needs no download.

1,797 nodes, one per 8×8 image; 64 features, pixel values divided by 16 into [0, 1]; 10 classes, the digits. Nodes i and
j are neighbours if either is among the other's k = 10 nearest by Euclidean distance. k = 10 leaves no node isolated and
gives a mean degree near those of the public sets (14 here; 4 in Cora, 31 in Photo).
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from trainer.data.graph import Graph

NEIGHBOURS = 10


def load() -> Graph:
    """Always the same graph, on every machine."""
    pixels, digits = _images()
    # Squared distances are whole numbers far below 2^53: exact in any order of summation. A stable sort then breaks
    # ties by node number, where a library's nearest neighbours may differ between versions and processors.
    square = (pixels**2).sum(1)
    distance = square[:, None] + square - 2 * pixels @ pixels.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :NEIGHBOURS]
    source = nearest.reshape(-1)
    target = np.repeat(np.arange(len(pixels)), NEIGHBOURS)
    return Graph.from_edges(
        np.stack([source, target]),
        (pixels / 16).astype(np.float32),
        name="digits",
        y=digits,
        classes=[str(digit) for digit in range(10)],
    )


def _images() -> tuple[np.ndarray, np.ndarray]:
    """Pixels [1797, 64], whole numbers 0 to 16, and digits [1797], from scikit-learn's file.

    Not by its `load_digits`: importing scikit-learn takes a second of processor time, and training needs none of it.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
