"""The built-in set: scikit-learn's handwritten digits as a graph, so that a first run needs no download.

1,797 nodes, one per 8×8 image; 64 features, pixel values divided by 16 into [0, 1]; 10 classes, the digits. Nodes i and
j are neighbours if either is among the other's k = 10 nearest by Euclidean distance. k = 10 leaves no node isolated and
gives a mean degree near those of the public sets (14 here; 4 in Cora, 31 in Photo).
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from trainer.data.graph import Graph

NEIGHBOURS = 10


def load() -> Graph:
    """Always the same graph, on every machine."""
    images = load_digits()
    pixels = images.data  # [1797, 64], whole numbers 0 to 16
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
        y=images.target,
        classes=[str(digit) for digit in images.target_names],
    )
