"""Judge finished embeddings under one named protocol (design section 4, methods 5).

Labels enter here and nowhere before. What needs them is None, with a reason, where there are too few; what does not
need them (`geometry`) is always there. The result is plain JSON and carries its own protocol, so that no figure
travels without it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from trainer.config import EvaluationSpec, explain
from trainer.datasets import load
from trainer.errors import InvalidInput, NonFinite
from trainer.quality.clustering import FULL_UP_TO, INITIALISATIONS, cluster
from trainer.quality.geometry import geometry
from trainer.quality.pairs import BIN_WIDTH, pair_statistics
from trainer.quality.probe import CHECK_EVERY, PATIENCE, WEIGHT_DECAYS, linear_probe
from trainer.quality.splits import NoSplit, Split, choose_split
from trainer.run.directory import read_spec
from trainer.run.export import read_embeddings


def evaluate(
    z: np.ndarray | Tensor,
    *,
    y: np.ndarray | Tensor | None,
    public_split: Mapping[str, Tensor] | None,
    spec: EvaluationSpec,
    seed: int,
) -> dict[str, Any]:
    """All figures on the embeddings of one run.  z: [N, d]; y: [N], -1 for unlabelled nodes.

    `seed` is the run's: it draws the split (unless the spec has its own), the probe's start and the samples.

    Raises:
        NonFinite: an embedding is NaN or infinite.
        InvalidInput: y does not have one entry per row of z.
    """
    started = time.perf_counter()
    vectors = _checked(z)
    split_seed = seed if spec.split_seed is None else spec.split_seed
    labels, reason = _labels(y, len(vectors))
    split: Split | None = None
    probe = clustering = pairs = None
    if labels is not None:
        try:
            split = choose_split(labels, public_split, spec.protocol, split_seed)
        except NoSplit as error:
            reason = f"no probe: {error}"
        if split is not None:
            probe = linear_probe(
                vectors, labels, split,
                epochs=spec.probe_epochs, lr=spec.probe_lr, l2_normalise=spec.l2_normalise, seed=seed,
            ).as_dict()  # fmt: skip
        clustering = cluster(vectors, labels, seeds=spec.cluster_seeds)
        pairs = pair_statistics(vectors, labels, max_nodes=spec.max_pairs_nodes, seed=seed)
    return {
        "protocol": _protocol(spec, split, split_seed, seed),
        "probe": probe,
        "clustering": clustering,
        "pairs": pairs,
        "geometry": geometry(vectors, seed=seed),
        "unlabelled_reason": reason,
        "seconds": round(time.perf_counter() - started, 3),
    }


def evaluate_run(run_dir: str | Path, *, protocol: str | None = None) -> dict[str, Any]:
    """Judge the exported embeddings of a run directory again, under its own protocol or another; writes nothing.

    Raises:
        InvalidInput: not a finished run, files that changed, a graph that is not the one trained on, unknown protocol.
    """
    run = Path(run_dir)
    spec = read_spec(run)
    document = spec.evaluation.model_dump() | ({"protocol": protocol} if protocol else {})
    try:
        judged = EvaluationSpec.model_validate(document)
    except ValidationError as error:
        raise InvalidInput(explain(error)) from error
    vectors, ids = read_embeddings(run / "embeddings")
    graph = load(spec.data)
    if not np.array_equal(ids, graph.ids):
        raise InvalidInput(f"{run}: the data set {spec.data.name} no longer has the nodes this run was trained on.")
    return evaluate(np.array(vectors), y=graph.y, public_split=graph.split, spec=judged, seed=spec.run.seed)


def _checked(z: np.ndarray | Tensor) -> Tensor:
    """z as float32 on the CPU."""
    vectors = torch.as_tensor(z).detach().to("cpu", torch.float32)
    if vectors.ndim != 2 or not vectors.numel():
        raise InvalidInput(f"embeddings must be a table of nodes × dimensions, not of shape {tuple(vectors.shape)}")
    bad = int((~torch.isfinite(vectors)).any(1).sum())
    if bad:
        raise NonFinite(
            f"{bad} of {len(vectors)} embeddings hold NaN or infinite values. "
            "Lower optimiser.lr or raise objective.temperature, and check the features."
        )
    return vectors


def _labels(y: np.ndarray | Tensor | None, nodes: int) -> tuple[Tensor | None, str | None]:
    """Labels that can be used, or the reason why there are none."""
    if y is None:
        return None, "the graph has no labels"
    labels = torch.as_tensor(y).to("cpu", torch.long)
    if labels.shape != (nodes,):
        raise InvalidInput(
            f"{nodes} embeddings need as many labels (-1 where there is none), not {tuple(labels.shape)}"
        )
    classes = torch.unique(labels[labels >= 0])
    if len(classes) < 2:
        return None, f"figures that use labels need two classes, the labelled nodes have {len(classes)}"
    return labels, None


def _protocol(spec: EvaluationSpec, split: Split | None, split_seed: int, seed: int) -> dict[str, Any]:
    """Everything someone needs to compute the same figures again."""
    return {
        "name": spec.protocol,
        "split": None if split is None else split.name,
        "split_sizes": None if split is None else split.sizes(),
        "split_seed": None if split is None or split.name == "public" else split_seed,
        "seed": seed,
        "probe": {
            "head": "multinomial logistic regression",
            "optimiser": "Adam",
            "lr": spec.probe_lr,
            "epochs": spec.probe_epochs,
            "weight_decays": list(WEIGHT_DECAYS),
            "check_every": CHECK_EVERY,
            "patience": PATIENCE,
            "l2_normalise": spec.l2_normalise,
            "selection": "weight decay and epoch of the best validation accuracy, earliest of equals; test read once",
        },
        "clustering": {
            "algorithm": f"k-means on unit rows (mini-batch k-means above {FULL_UP_TO} nodes), k = number of classes",
            "n_init": INITIALISATIONS,
            "seeds": spec.cluster_seeds,
        },
        "pairs": {
            "distance": "1 - cos",
            "ratio": "100 · median over same-class pairs / median over different-class pairs, pooled over all pairs",
            "bin_width": BIN_WIDTH,
            "max_nodes": spec.max_pairs_nodes,
        },
    }
