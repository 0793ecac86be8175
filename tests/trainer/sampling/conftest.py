"""Graphs that neighbour samplers get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.graph import Graph


@pytest.fixture(scope="session")
def ragged() -> Graph:
    """300 nodes, directed: degrees from 0 to about 150, the last 20 nodes isolated."""
    rng = np.random.default_rng(0)
    target = np.minimum(rng.zipf(1.3, 4_000) - 1, 279)  # the first nodes, and node 279, are in much demand
    edges = np.stack([rng.integers(0, 280, len(target)), target])
    return Graph.from_edges(edges, np.ones((300, 1), dtype=np.float32), directed=True)


@pytest.fixture(scope="session")
def even() -> Graph:
    """240 nodes, undirected, about 16 neighbours each."""
    rng = np.random.default_rng(1)
    return Graph.from_edges(rng.integers(0, 240, (2, 2_000)), np.ones((240, 1), dtype=np.float32))


@pytest.fixture(scope="session")
def crowded() -> Graph:
    """500 nodes, directed, 100 to 400 in-neighbours each, some nodes several times as popular as others."""
    rng = np.random.default_rng(2)
    popularity = rng.pareto(3, 500) + 0.5
    degrees = rng.integers(100, 400, 500)
    sources = [rng.choice(500, size=d, replace=False, p=popularity / popularity.sum()) for d in degrees]
    edges = np.stack([np.concatenate(sources), np.repeat(np.arange(500), degrees)])
    return Graph.from_edges(edges, np.ones((500, 1), dtype=np.float32), directed=True)
