"""What is told of an imported graph, compared with numpy on the whole arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trainer.data.graph import Graph
from trainer.data.importing.about import QUANTILES, degree_figures, describe
from trainer.errors import InvalidInput
from trainer.files import mapped


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("nodes, edges", [(2, 0), (2, 1), (7, 3), (50, 400), (1_000, 1_500), (999, 20_000)])
def test_degrees_are_those_of_the_whole_graph(nodes, edges, directed, monkeypatch):
    monkeypatch.setattr(mapped, "PIECE_BYTES", 256)  # many pieces
    edge_index = np.random.default_rng(nodes).integers(nodes, size=(2, edges))
    graph = Graph.from_edges(edge_index, np.ones((nodes, 1)), directed=directed)
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    told = degree_figures(indptr, indices)
    degrees = np.diff(indptr)
    expected = {"min": degrees.min(), "median": np.median(degrees), "mean": degrees.mean(), "max": degrees.max()}
    assert {key: told[key] for key in expected} == pytest.approx(expected)
    assert list(told["quantiles"].values()) == pytest.approx(np.quantile(degrees, QUANTILES).tolist())
    outgoing = np.bincount(indices, minlength=nodes)
    assert told["isolated"] == ((degrees == 0) & (outgoing == 0)).sum()


def test_a_stored_graph_is_described_in_json(tmp_path):
    x = np.eye(6, 40)
    graph = Graph.from_edges(
        [[0, 1, 2], [1, 2, 3]], x, ids=list("abcdef"), weight=[1, 2, 3], y=[0, 1, 1, 0, -1, -1], classes=("cat", "dog")
    )
    graph.save(tmp_path / "g")
    about = describe(tmp_path / "g")
    assert json.loads(json.dumps(about)) == about
    degree = about.pop("degree")
    assert (degree["min"], degree["max"], degree["isolated"]) == (0, 2, 2)
    size = sum(path.stat().st_size for path in (tmp_path / "g").glob("*.npy"))
    assert about == {
        "nodes": 6, "edges": 6, "features": 40, "classes": 2, "class_names": ["cat", "dog"], "sparse": True,
        "nonzeros": 6, "weighted": True, "ids": "text", "bytes": size, "fingerprint": graph.fingerprint(),
        "notes": ["kept 2 isolated nodes"],
    }  # fmt: skip


def test_what_is_no_graph_is_not_described(tmp_path):
    with pytest.raises(InvalidInput, match="not a saved graph"):
        describe(tmp_path)
