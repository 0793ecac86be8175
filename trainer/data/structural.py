"""Features of nodes that come without any: where a node is in the graph, told by random walks.

Each node starts with WIDTH random numbers of its own, R, and P averages over a node and those with an edge into it; a
node's features are the unit rows of P^STEPS R, so that nodes have similar features if walks from them lead to the same
places. Time and memory grow with edges and nodes, and the same graph always has the same features.

A new node starts with nothing: its features are zeros, and its embedding is what its neighbours tell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.data.sparsity import STRUCTURAL_WIDTH

WIDTH, STEPS = STRUCTURAL_WIDTH, 8
NOTE = (
    f"the nodes have no features: they get {WIDTH} structural ones, random numbers averaged over walks of {STEPS} steps"
)
_SEED = 0


def features(indptr: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.float32]:
    """[N, WIDTH] float32.  indptr, indices: edges compressed by target; their weights do not count."""
    from scipy.sparse import csr_matrix

    n = len(indptr) - 1
    adjacency = csr_matrix((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(n, n))
    degree = 1 + np.diff(indptr).astype(np.float32)[:, None]
    walked = np.random.default_rng(_SEED).standard_normal((n, WIDTH), dtype=np.float32) / np.sqrt(degree)
    for _ in range(STEPS):
        walked = (adjacency @ walked + walked) / degree
    unit: NDArray[np.float32] = walked / np.maximum(np.linalg.norm(walked, axis=1, keepdims=True), 1e-12)
    return unit


def of_new_nodes(m: int) -> NDArray[np.float32]:
    """[m, WIDTH] zeros."""
    return np.zeros((m, WIDTH), dtype=np.float32)
