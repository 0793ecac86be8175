"""The generator does what its spec asks for."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.graph import Graph
from trainer.data.sources.synthetic import generate
from trainer.spec.data import SyntheticSpec


def homophily(graph: Graph) -> float:
    source, target = graph.edge_index
    return float((graph.y[source] == graph.y[target]).float().mean())


@pytest.mark.parametrize("asked", [0.0, 0.2, 0.8, 1.0])
@pytest.mark.parametrize("exponent", [1.6, 2.5, 10])
def test_degree_and_homophily_are_met(asked, exponent):
    graph = generate(SyntheticSpec(nodes=3_000, degree=8, homophily=asked, degree_exponent=exponent))
    assert graph.num_edges == 3_000 * 8
    assert homophily(graph) == pytest.approx(asked, abs=1e-3)
    assert np.bincount(graph.y).tolist() == [600] * 5


def test_degrees_follow_the_power_law():
    def spread(exponent: float) -> float:
        degree = generate(SyntheticSpec(nodes=20_000, degree_exponent=exponent)).indptr.diff().double()
        return float(degree.std() / degree.mean())

    # For large exponents only the Poisson part remains: deviation √10 of mean 10.
    assert spread(10) == pytest.approx(10**-0.5, rel=0.2)
    assert spread(2.2) > 2 * spread(4) > spread(10)


def test_features_carry_the_asked_signal():
    spec = SyntheticSpec(nodes=4_000, classes=4, features=400, active_features=10, signal=0.5)
    x = generate(spec)
    row = np.repeat(np.arange(4_000), x.x.crow_indices().diff())
    own = (x.x.col_indices().numpy() // 100) == x.y.numpy()[row]
    assert own.mean() == pytest.approx(0.5 + 0.5 / 4, abs=0.02)
    assert x.x.crow_indices().diff().max() <= 10
    assert set(x.x.values().tolist()) == {1.0}


def test_same_spec_same_arrays_and_other_seed_other_arrays():
    spec = SyntheticSpec(nodes=500)
    assert generate(spec).fingerprint() == generate(spec).fingerprint()
    assert generate(spec).y.tolist() == generate(spec).y.tolist()
    assert generate(spec.model_copy(update={"seed": 1})).fingerprint() != generate(spec).fingerprint()


@pytest.mark.parametrize(
    "spec, edges",
    [
        (SyntheticSpec(nodes=2, classes=1, degree=1, features=1, active_features=1), 2),
        (SyntheticSpec(nodes=6, classes=2, degree=50, homophily=1, features=2), 12),  # two triangles
        (SyntheticSpec(nodes=6, classes=6, degree=2, homophily=1, features=6), 0),  # no pair within a class
        (SyntheticSpec(nodes=7, classes=1, degree=2, homophily=0.1), 14),  # one class has only inner edges
    ],
)
def test_small_graphs_take_the_pairs_there_are(spec, edges):
    graph = generate(spec)
    assert graph.num_edges == edges
    short = round(spec.nodes * spec.degree / 2) * 2 != edges
    assert any("could not be placed" in note for note in graph.notes) == short
