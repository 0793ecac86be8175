"""Everything someone needs to compute the figures of an evaluation again: splits, settings, samples and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.evaluation.clustering import FULL_UP_TO, INITIALISATIONS
from trainer.evaluation.geometry import UNIFORMITY_NODES
from trainer.evaluation.links import MAX_PAIRS
from trainer.evaluation.pairs import BIN_WIDTH
from trainer.evaluation.probe import CHECK_EVERY, PATIENCE, WEIGHT_DECAYS
from trainer.evaluation.splits import Split
from trainer.spec.evaluation import EvaluationSpec

_Figures = Mapping[str, Any] | None


def describe_protocol(
    spec: EvaluationSpec, seed: int, split_seed: int, split: Split | None, *,
    nodes: int, probe: _Figures, clustering: _Figures, pairs: _Figures, links: _Figures = None, link_seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The protocol under which the figures given were found; they tell the sizes of their samples."""
    return {
        "name": spec.protocol,
        "split": None if split is None else split.name,
        "split_sizes": None if split is None else split.sizes(),
        "split_seed": None if split is None or split.name == "public" else split_seed,
        "seed": seed,
        "probe": _probe_settings(spec) | _probe_sample(probe, spec.max_probe_nodes, seed),
        "clustering": _clustering_settings(spec) | _sample(clustering, spec.max_cluster_nodes, seed),
        "pairs": _pairs_settings() | _sample(pairs, spec.max_pairs_nodes, seed),
        "links": None if links is None else _links(links, link_seed),
        "geometry": {
            "nodes": nodes,
            "uniformity": _sizes(min(UNIFORMITY_NODES, nodes), nodes, UNIFORMITY_NODES, seed),
        },
    }


def _probe_settings(spec: EvaluationSpec) -> dict[str, Any]:
    return {
        "head": "multinomial logistic regression",
        "optimiser": "Adam",
        "lr": spec.probe_lr,
        "epochs": spec.probe_epochs,
        "weight_decays": list(WEIGHT_DECAYS),
        "check_every": CHECK_EVERY,
        "patience": PATIENCE,
        "l2_normalise": spec.l2_normalise,
        "selection": "weight decay and epoch of the best validation accuracy, earliest of equals; test read once"
        + ("; then fitted again on training and validation nodes" if spec.protocol == "bgrl20" else ""),
    }


def _clustering_settings(spec: EvaluationSpec) -> dict[str, Any]:
    return {
        "algorithm": f"k-means on unit rows (mini-batch k-means above {FULL_UP_TO} nodes), k = number of their classes",
        "n_init": INITIALISATIONS,
        "seeds": spec.cluster_seeds,
    }


def _pairs_settings() -> dict[str, Any]:
    return {
        "distance": "1 - cos",
        "ratio": "100 · median over same-class pairs / median over different-class pairs, pooled over all pairs",
        "bin_width": BIN_WIDTH,
    }


def _links(links: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Which pairs were compared. Selected by, the figure is a validation figure: there is no second set of edges."""
    return {
        "score": "cosine",
        "auc": "P(held-out edge scores above a pair without an edge), ties half",
        "held_out": "pairs of nodes whose edges, in both directions, were removed before training",
        "without_edge": "random pairs of different nodes, neither linked in training nor held out",
        "seed": seed,
        "max_pairs": MAX_PAIRS,
        "sampled": links["sampled"],
        "used": links["pairs"],
        "available": links["available"],
    }


def _probe_sample(probe: _Figures, max_nodes: int, seed: int) -> dict[str, Any]:
    """Which nodes of each part the probe looked at; test nodes are never sampled."""
    limit = {"max_nodes": max_nodes}
    if probe is None:
        return limit
    parts = {name: {"used": probe["used"][name], "available": size} for name, size in probe["sizes"].items()}
    return limit | {"sampled": probe["sampled"], "sample_seed": seed if probe["sampled"] else None, "nodes": parts}


def _sample(figures: _Figures, max_nodes: int, seed: int) -> dict[str, Any]:
    """Which of the labelled nodes some figures are over."""
    if figures is None:
        return {"max_nodes": max_nodes}
    return _sizes(figures["nodes"], figures["available"], max_nodes, seed)


def _sizes(used: int, available: int, max_nodes: int, seed: int) -> dict[str, Any]:
    sampled = used < available
    return {
        "max_nodes": max_nodes,
        "sampled": sampled,
        "sample_seed": seed if sampled else None,
        "used": used,
        "available": available,
    }
