"""k-means on unit embeddings, scored against the classes: FMI, ARI, NMI (methods 5.4).

k is the number of classes; the labels are used for k and for the scores, never for the clusters. Only labelled nodes
are clustered, since unlabelled ones may belong to further classes. Of many, a seeded sample is clustered and scored.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, fowlkes_mallows_score, normalized_mutual_info_score
from torch import Tensor

from trainer.data.seeds import generator
from trainer.evaluation.rows import Rows, sample

INITIALISATIONS = 10
FULL_UP_TO = 20_000  # nodes; beyond, mini-batch k-means, because ten times ten full runs would take minutes

_SCORES = {"fmi": fowlkes_mallows_score, "ari": adjusted_rand_score, "nmi": normalized_mutual_info_score}


class OneClass(ValueError):
    """The nodes to cluster have no two classes that could be told apart."""


def cluster(
    z: np.ndarray | Tensor | Rows,
    y: Tensor,
    *,
    seeds: int,
    max_nodes: int = 100_000,
    seed: int = 0,
    full_up_to: int = FULL_UP_TO,
) -> dict[str, Any]:
    """Mean and standard deviation of each score over k-means seeds 0 … seeds-1.  z: [N, d], y: [N], -1 without label.

    Above `max_nodes` labelled nodes a sample of that size, drawn by `seed`, is clustered and scored, and "sampled"
    says so. k counts the classes of the sample. Memory: 4 bytes × d × nodes clustered, twice that for full k-means.

    Raises:
        OneClass: fewer than two classes among the nodes that are clustered.
    """
    labelled = torch.nonzero(y >= 0).flatten()
    nodes = sample(labelled, max_nodes, generator(seed, "cluster sample"))
    truth = y[nodes].cpu().numpy()
    k = len(np.unique(truth))
    if k < 2:
        raise OneClass(f"clustering is scored against at least two classes, {len(nodes)} nodes have {k}")
    algorithm = KMeans if len(nodes) <= full_up_to else MiniBatchKMeans
    scores, found = _repeat(algorithm, Rows.of(z).take(nodes, unit=True).numpy(), truth, k, seeds)
    figures: dict[str, Any] = {
        "algorithm": algorithm.__name__,
        "k": k,
        "clusters_found": found,
        "nodes": len(nodes),
        "available": len(labelled),
        "sampled": len(nodes) < len(labelled),
        "seeds": seeds,
        "n_init": INITIALISATIONS,
    }
    return figures | {name: {"mean": float(np.mean(v)), "std": float(np.std(v))} for name, v in scores.items()}


def _repeat(
    algorithm: type[KMeans | MiniBatchKMeans], points: np.ndarray, truth: np.ndarray, k: int, seeds: int
) -> tuple[dict[str, list[float]], int]:
    """Scores of k-means by seed, and the smallest number of clusters that a seed found."""
    values: dict[str, list[float]] = {name: [] for name in _SCORES}
    found = k
    for seed in range(seeds):
        with warnings.catch_warnings():  # collapsed embeddings have fewer than k distinct points: `found` tells
            warnings.simplefilter("ignore", ConvergenceWarning)
            assigned = algorithm(k, n_init=INITIALISATIONS, random_state=seed).fit_predict(points)
        found = min(found, len(np.unique(assigned)))
        for name, score in _SCORES.items():
            values[name].append(float(score(truth, assigned)))
    return values, found
