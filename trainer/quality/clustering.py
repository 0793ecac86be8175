"""k-means on unit embeddings, scored against the classes: FMI, ARI, NMI (methods 5.4).

k is the number of classes; the labels are used for k and for the scores, never for the clusters. Only labelled nodes
are clustered, since unlabelled ones may belong to further classes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, fowlkes_mallows_score, normalized_mutual_info_score
from torch import Tensor
from torch.nn.functional import normalize

INITIALISATIONS = 10
FULL_UP_TO = 20_000  # nodes; beyond, mini-batch k-means, because ten times ten full runs would take minutes

_SCORES = {"fmi": fowlkes_mallows_score, "ari": adjusted_rand_score, "nmi": normalized_mutual_info_score}


def cluster(z: Tensor, y: Tensor, *, seeds: int, full_up_to: int = FULL_UP_TO) -> dict[str, Any]:
    """Mean and standard deviation of each score over k-means seeds 0 … seeds-1.  z: [N, d], y: [N], -1 without label.

    Raises:
        ValueError: fewer than two classes among the labelled nodes.
    """
    labelled = y >= 0
    points = normalize(z[labelled], dim=1).cpu().numpy()
    truth = y[labelled].cpu().numpy()
    k = len(np.unique(truth))
    if k < 2:
        raise ValueError("clustering is scored against at least two classes")
    algorithm = KMeans if len(points) <= full_up_to else MiniBatchKMeans
    values: dict[str, list[float]] = {name: [] for name in _SCORES}
    found = k
    for seed in range(seeds):
        with warnings.catch_warnings():  # collapsed embeddings have fewer than k distinct points: reported below
            warnings.simplefilter("ignore", ConvergenceWarning)
            assigned = algorithm(k, n_init=INITIALISATIONS, random_state=seed).fit_predict(points)
        found = min(found, len(np.unique(assigned)))
        for name, score in _SCORES.items():
            values[name].append(float(score(truth, assigned)))
    figures: dict[str, Any] = {
        "algorithm": algorithm.__name__,
        "k": k,
        "clusters_found": found,
        "nodes": len(points),
        "seeds": seeds,
        "n_init": INITIALISATIONS,
    }
    return figures | {name: {"mean": float(np.mean(v)), "std": float(np.std(v))} for name, v in values.items()}
