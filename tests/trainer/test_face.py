"""What `import trainer` offers."""

from __future__ import annotations

import numpy as np
import pytest

import trainer
from trainer.errors import InvalidInput

DOCUMENT = {
    "data": {"name": "synthetic", "synthetic": {"nodes": 60, "classes": 2, "features": 12}},
    "encoder": {"hidden": 8, "dim": 4}, "method": {"inner_steps": 1, "metric": {"hidden": 4}},
    "optimiser": {"epochs": 2}, "evaluation": {"probe_epochs": 2, "cluster_seeds": 1, "figures": False},
    "run": {"track": False, "threads": 1},
}  # fmt: skip


def test_every_name_is_there_and_no_other():
    assert all(callable(getattr(trainer, name)) for name in trainer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trainer.nothing


def test_a_run_embeds_its_graph_as_it_exported_it_and_others_with_the_same_features(tmp_path):
    spec = trainer.parse_spec(DOCUMENT)
    result = trainer.fit(spec, tmp_path / "run")
    graph = trainer.load(spec.data)
    vectors, ids = trainer.read_embeddings(tmp_path / "run" / "embeddings")
    np.testing.assert_array_equal(trainer.embed(result.directory, graph), vectors)
    np.testing.assert_array_equal(ids, graph.ids)
    other = trainer.Graph.from_edges([[0, 1], [1, 2]], np.eye(3, 12, dtype=np.float32))
    assert trainer.embed(result.directory, other).shape == (3, 4)
    narrow = trainer.Graph.from_edges([[0, 1], [1, 2]], np.eye(3, 5, dtype=np.float32))
    with pytest.raises(InvalidInput, match="trained on 12 features, and this graph has 5"):
        trainer.embed(result.directory, narrow)
