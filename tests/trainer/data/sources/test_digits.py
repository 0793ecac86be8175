"""The built-in set."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from trainer.data.graph import Graph
from trainer.data.sources import digits


@pytest.fixture(scope="module")
def graph() -> Graph:
    return digits.load()


def test_shape_and_scale(graph: Graph):
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1797, 64, 10)
    assert (float(graph.x.min()), float(graph.x.max())) == (0, 1)
    assert graph.ids.dtype == np.int64
    assert graph.notes == ()  # nobody is isolated
    assert graph.y[:10].tolist() == list(range(10))


def test_images_are_those_of_scikit_learn(graph: Graph):
    images = load_digits()
    assert (graph.x.numpy() * 16 == images.data).all()
    assert (graph.y.numpy() == images.target).all()


def test_edges_are_those_of_scikit_learn_up_to_ties(graph: Graph):
    x = graph.x.numpy()
    distance, _ = NearestNeighbors(n_neighbors=11).fit(x).kneighbors(x)
    reach = distance[:, -1]  # of the tenth neighbour; column 0 is the node itself
    source, target = graph.edge_index.numpy()
    length = np.linalg.norm(x[source] - x[target], axis=1)
    assert (length <= np.maximum(reach[source], reach[target]) + 1e-5).all()
    assert np.diff(graph.indptr.numpy()).min() >= 10


def test_every_load_is_the_same(graph: Graph):
    assert digits.load().fingerprint() == graph.fingerprint()
