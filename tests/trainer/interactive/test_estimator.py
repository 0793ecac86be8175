"""NodeEmbedder in scikit-learn's own machinery."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import trainer
from tests.trainer.interactive.test_embeddings import HALF, N, two_groups
from trainer.errors import InvalidInput

QUICK = {"encoder": {"hidden": 16}, "evaluation": {"probe_epochs": 2, "cluster_seeds": 1}, "run": {"threads": 1}}
IDS = np.array([f"<p{number}>" for number in range(N)])
CLASSES = np.where(np.arange(N) < HALF, "left", "right")


def embedder(**parameters):
    return trainer.NodeEmbedder(two_groups(), **{"method": "grace", "dim": 8, "epochs": 10, "spec": QUICK} | parameters)


def test_parameters_are_those_of_the_spec():
    fitted = embedder(lr=0.01, random_state=3).fit()
    spec = fitted.embeddings_.spec
    assert (spec.method.name, spec.encoder.dim, spec.encoder.hidden) == ("grace", 8, 16)
    assert (spec.optimiser.epochs, spec.optimiser.lr, spec.run.seed) == (10, 0.01, 3)


def test_clone_and_set_params_keep_the_rest():
    first = embedder()
    again = clone(first).set_params(epochs=5)
    assert again.get_params() | {"epochs": 10, "graph": None} == first.get_params() | {"graph": None}
    assert again.graph[0].equals(first.graph[0])


def test_a_graph_with_sparse_features_can_be_cloned():
    graph = trainer.Graph.from_edges([[0, 1], [1, 2]], np.eye(3, 20, dtype=np.float32))
    assert graph.x.is_sparse_csr
    assert clone(trainer.NodeEmbedder(graph)).graph.fingerprint() == graph.fingerprint()


def test_transform_gives_rows_by_id_and_all_of_them_without():
    fitted = embedder().fit(IDS)
    vectors = fitted.transform(None)
    assert vectors.shape == (N, 8)
    np.testing.assert_array_equal(fitted.transform(["<p5>", "<p2>"]), vectors[[5, 2]])
    np.testing.assert_array_equal(fitted.transform(IDS[:4, None]), vectors[:4])
    assert fitted.get_feature_names_out().tolist() == [f"nodeembedder{column}" for column in range(8)]
    with pytest.raises(InvalidInput, match="no node with the id 'p5'"):
        fitted.transform(["p5"])


def test_without_a_graph_fit_gets_it():
    graph = two_groups()
    model = trainer.NodeEmbedder(method="grace", dim=8, epochs=10, spec=QUICK)
    np.testing.assert_array_equal(model.fit_transform(graph), embedder().fit().transform(None))
    with pytest.raises(InvalidInput, match="there is no graph"):
        trainer.NodeEmbedder().fit()
    with pytest.raises(NotFittedError):
        trainer.NodeEmbedder().transform(None)


def test_a_pipeline_learns_classes_of_nodes_and_a_search_chooses():
    pipeline = make_pipeline(embedder(), LogisticRegression())
    some = np.arange(N) % 3 == 0
    assert pipeline.fit(IDS[some], CLASSES[some]).score(IDS[~some], CLASSES[~some]) > 0.9
    search = GridSearchCV(pipeline, {"nodeembedder__epochs": [1, 10]}, cv=2).fit(IDS, CLASSES)
    assert search.best_params_["nodeembedder__epochs"] in (1, 10)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_spec_that_is_no_mapping_is_refused_with_a_remedy():
    with pytest.raises(InvalidInput, match=r"spec is 'grace'. Give a mapping"):
        embedder(spec="grace").fit()
