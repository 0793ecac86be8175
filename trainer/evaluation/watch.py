"""Look at the embedding while it is being trained: what a sweep decides by, and a curve to see when training is enough.

The encoder embeds the clean graph as the export does, to the bit, so the figures of the last epoch are those of the
final evaluation. Only validation nodes and held-out edges are looked at, never test nodes. Nothing that training uses
is touched: no mode, no weight, no random stream.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.evaluation.links import link_auc
from trainer.evaluation.probe import choose_head, settings_of
from trainer.evaluation.splits import NoSplit, Split, choose_split
from trainer.export.layerwise import embed_layerwise, model_digest
from trainer.nn.encoder import Encoder


def watch(
    encoder: Encoder, graph: Graph, folder: Path, spec: TrainSpec, *, progress: Callable[[int, int], None] | None = None
) -> dict[str, float]:
    """Figures of the encoder as it is now, and `watch_seconds`; empty where there is nothing to judge it by.

    val_accuracy   share of validation nodes that the probe of the final evaluation gets right; with labels and a split
    link_auc       AUC of cosines on held-out edges (trainer.evaluation.links); with held-out edges

    Embeddings are written to `folder`, which is removed afterwards; `progress` is told of (done, total) rows of that,
    which is what takes long on a large graph. Memory as in export and evaluation.

    Raises:
        NonFinite: an embedding is NaN or infinite.
    """
    started, split = time.perf_counter(), _split(graph, spec)
    if split is None and graph.held_out is None:
        return {}
    file = folder / "vectors.npy"
    folder.mkdir(exist_ok=True)  # what a killed run left there goes on or is thrown away
    try:
        embed_layerwise(
            encoder, graph, file, model_digest=model_digest(encoder), graph_digest="the run's own", progress=progress
        )
        z, found = np.load(file, mmap_mode="r"), {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the map keeps what it shows
    if split is not None:
        assert graph.y is not None
        head = choose_head(z, graph.y, split.train, split.val, **settings_of(spec.evaluation, spec.run.seed))
        found["val_accuracy"] = head.val
    links = link_auc(z, graph, seed=spec.data.held_out_seed)
    if links is not None and links["auc"] is not None:
        found["link_auc"] = links["auc"]
    return found | {"watch_seconds": time.perf_counter() - started}


def _split(graph: Graph, spec: TrainSpec) -> Split | None:
    """The split of the final evaluation, or None where it has none."""
    asked = spec.evaluation
    seed = spec.run.seed if asked.split_seed is None else asked.split_seed
    try:
        return None if graph.y is None else choose_split(graph.y, graph.split, asked.protocol, seed)
    except NoSplit:
        return None
