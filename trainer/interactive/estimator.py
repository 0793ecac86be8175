"""Graph embeddings as a transformer of scikit-learn: node ids go in, vectors come out.

The graph is a parameter, so that a Pipeline or a search can split the *nodes*: `fit` always learns from the whole
graph, without labels, and `transform` looks up the nodes asked for. Without that parameter, `fit` gets the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from trainer.config import TrainSpec
from trainer.errors import InvalidInput
from trainer.files.documents import merged
from trainer.interactive.fit import fit


class NodeEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embeds the nodes of a graph; `y` is never looked at.

        model = make_pipeline(NodeEmbedder(graph, method="grace"), LogisticRegression())
        model.fit(ids, classes).predict(other_ids)                         # ids: [n], or [n, 1]
        vectors = NodeEmbedder(method="grace").fit_transform(graph)        # of all nodes

    Parameters:
        graph: anything `trainer.fit` takes as a graph in memory; none: `fit` gets it instead of ids.
        method: a name from `nml methods`.
        dim, epochs, lr: `encoder.dim`, `optimiser.epochs` and `optimiser.lr`; none: as the method's preset has them.
        spec: any other settings, by section.
        random_state: `run.seed`.
        run_dir: where the run is kept, which can be fitted once only; none: in a temporary directory, and a fitted
            embedder cannot be pickled.

    Attributes:
        embeddings_: what `trainer.fit` returns.
    """

    def __init__(
        self,
        graph: Any = None,
        *,
        method: str = "nml",
        dim: int | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        spec: Mapping[str, Any] | None = None,
        random_state: int = 0,
        run_dir: str | None = None,
    ):
        self.graph = graph
        self.method = method
        self.dim = dim
        self.epochs = epochs
        self.lr = lr
        self.spec = spec
        self.random_state = random_state
        self.run_dir = run_dir

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Train.  X: ids of nodes, which change nothing; or the graph, if the embedder has none.

        Raises:
            TrainerError: of the kind that says what to do (trainer.errors).
        """
        if self.graph is None and X is None:
            raise InvalidInput("there is no graph: give one to NodeEmbedder(graph), or to fit.")
        if isinstance(self.spec, TrainSpec):
            raise InvalidInput("spec is a whole TrainSpec. Give a mapping of the sections to change: {'encoder': {…}}.")
        if not isinstance(self.spec, Mapping | None):
            raise InvalidInput(
                f"spec is {self.spec!r}. Give a mapping of sections: {{'encoder': {{…}}}}; a method's name is `method`."
            )
        asked: dict[str, dict[str, Any]] = {
            "method": {"name": self.method}, "encoder": {"dim": self.dim},
            "optimiser": {"epochs": self.epochs, "lr": self.lr}, "run": {"seed": self.random_state},
        }  # fmt: skip
        said = {
            section: {key: value for key, value in fields.items() if value is not None}
            for section, fields in asked.items()
        }
        given = self.graph if self.graph is not None else X
        self.embeddings_ = fit(given, self.run_dir, spec=merged(said, dict(self.spec or {})))
        self._fitted_on = given
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Vectors [n, dim].  X: ids of nodes, [n] or [n, 1]; none, or the graph that was fitted: all nodes.

        Raises:
            InvalidInput: a node that is not in the graph.
        """
        check_is_fitted(self, "embeddings_")
        if X is None or X is self._fitted_on:
            return np.array(self.embeddings_.vectors)
        return self.embeddings_.lookup(_ids(X))

    @property
    def _n_features_out(self) -> int:
        return int(self.embeddings_.vectors.shape[1])


def _ids(given: Any) -> list[Any]:
    """A list, also of a column."""
    array = given if isinstance(given, list) else np.asarray(given)
    if isinstance(array, np.ndarray):
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise InvalidInput(
                f"ids of nodes have shape {array.shape}; give [n]. Another graph is embedded by trainer.embed."
            )
        return list(array.tolist())
    return [node[0] if isinstance(node, list) else node for node in array]
