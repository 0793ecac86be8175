"""Judge finished embeddings under one named protocol (design section 4, methods 5).

Labels enter here and nowhere before, unless training is watched (trainer/evaluation/watch.py). What needs them is None,
with a reason, where there are too few; of what does not, `geometry` is always there and `links` where edges were held
out. The result is plain JSON and carries its own protocol, so that no figure travels without it.

Embeddings may be a memory map larger than memory (trainer/evaluation/rows.py): what is linear in the nodes is read by
pieces, the rest uses seeded samples whose sizes the protocol states.
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

from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.errors import InvalidInput, NonFinite
from trainer.evaluation.clustering import OneClass, cluster
from trainer.evaluation.geometry import geometry
from trainer.evaluation.links import link_auc
from trainer.evaluation.pairs import pair_statistics
from trainer.evaluation.probe import linear_probe, settings_of
from trainer.evaluation.protocol import describe_protocol
from trainer.evaluation.rows import Rows
from trainer.evaluation.splits import NoSplit, Split, choose_split
from trainer.export.embeddings import read_embeddings
from trainer.files.mapped import release
from trainer.run.directory import read_spec
from trainer.spec.base import explain
from trainer.spec.evaluation import EvaluationSpec

_IDS = 100_000  # ids compared at once


def evaluate(
    z: np.ndarray | Tensor,
    *,
    y: np.ndarray | Tensor | None,
    public_split: Mapping[str, Tensor] | None,
    spec: EvaluationSpec,
    seed: int,
    graph: Graph | None = None,
    link_seed: int = 0,
) -> dict[str, Any]:
    """All figures on the embeddings of one run.  z: [N, d], may be a memory map; y: [N], -1 for unlabelled nodes.

    `seed` is the run's: it draws the split (unless the spec has its own), the probe's start and the samples. Where
    `graph`, that of the nodes, holds out edges, "links" says how well embeddings know them; `link_seed` draws what they
    are compared with, apart from `seed`, so that runs of different seeds compare the same pairs.

    Raises:
        NonFinite: an embedding is NaN or infinite.
        InvalidInput: y does not have one entry per row of z.
    """
    started = time.perf_counter()
    table = _checked(z)
    split_seed = seed if spec.split_seed is None else spec.split_seed
    labels, reason = _labels(y, len(table))
    split: Split | None = None
    probe = clustering = pairs = None
    if labels is not None:
        try:
            split = choose_split(labels, public_split, spec.protocol, split_seed)
        except NoSplit as error:
            reason = f"no probe: {error}"
        if split is not None:
            refit = spec.protocol == "bgrl20"
            probe = linear_probe(table, labels, split, **settings_of(spec, seed), refit=refit).as_dict()
        try:
            clustering = cluster(table, labels, seeds=spec.cluster_seeds, max_nodes=spec.max_cluster_nodes, seed=seed)
        except OneClass as error:  # of a sample: the labels have two
            reason = "; ".join(filter(None, [reason, f"no clustering: {error}, raise evaluation.max_cluster_nodes"]))
        pairs = pair_statistics(table, labels, max_nodes=spec.max_pairs_nodes, seed=seed)
    links = None if graph is None else link_auc(table, graph, seed=link_seed)
    protocol = describe_protocol(
        spec, seed, split_seed, split, nodes=len(table), probe=probe, clustering=clustering, pairs=pairs, links=links,
        link_seed=link_seed,
    )  # fmt: skip
    return {
        "protocol": protocol,
        "probe": probe,
        "clustering": clustering,
        "pairs": pairs,
        "links": links,
        "geometry": geometry(table, seed=seed),
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
    if not _same(ids, graph.ids):
        raise InvalidInput(f"{run}: the data set {spec.data.name} no longer has the nodes this run was trained on.")
    return evaluate(
        vectors, y=graph.y, public_split=graph.split, spec=judged, seed=spec.run.seed, graph=graph,
        link_seed=spec.data.held_out_seed,
    )  # fmt: skip


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal ids in equal order, compared by pieces: they may be text, and memory-mapped."""
    if len(a) != len(b):
        return False
    for start in range(0, len(a), _IDS):
        part = slice(start, start + _IDS)
        if not np.array_equal(a[part], b[part]):
            return False
        release(a)
        release(b)
    return True


def _checked(z: np.ndarray | Tensor) -> Rows:
    """z as finite float32 rows, which is how embeddings are exported."""
    if z.ndim != 2 or 0 in z.shape:
        raise InvalidInput(f"embeddings must be a table of nodes × dimensions, not of shape {tuple(z.shape)}")
    table = Rows.of(z, torch.float32)
    bad = sum(int((~torch.isfinite(rows)).any(1).sum()) for rows in table.pieces())
    if bad:
        raise NonFinite(
            f"{bad} of {len(table)} embeddings hold NaN or infinite values. "
            "Lower optimiser.lr or raise the temperature, and check the features."
        )
    return table


def _labels(y: np.ndarray | Tensor | None, nodes: int) -> tuple[Tensor | None, str | None]:
    """Labels that can be used, or the reason why there are none."""
    if y is None:
        return None, "the graph has no labels"
    labels = y.to("cpu", torch.long) if isinstance(y, Tensor) else torch.from_numpy(np.array(y, dtype=np.int64))
    if labels.shape != (nodes,):
        raise InvalidInput(
            f"{nodes} embeddings need as many labels (-1 where there is none), not {tuple(labels.shape)}"
        )
    classes = torch.unique(labels[labels >= 0])
    if len(classes) < 2:
        return None, f"figures that use labels need two classes, the labelled nodes have {len(classes)}"
    return labels, None
