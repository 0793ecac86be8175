"""Published versions to ask about, for tests of new nodes and classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from service.embeddings.publish import build_version
from trainer.config import TrainSpec
from trainer.data.datasets import load
from trainer.export.embeddings import export_embeddings
from trainer.nn.encoder import Encoder

VERSION = "01k9vect0rs000000000000000"
SPEC = {"encoder": {"hidden": 16, "dim": 8}, "data": {"name": "synthetic", "features": "zscore", "synthetic": {
    "nodes": 200, "classes": 3, "features": 30, "degree": 6}}}  # fmt: skip


def publish(home: Path, document: dict, version: str = VERSION) -> Path:
    """A version as training leaves it, but for the training."""
    spec = TrainSpec.model_validate(document)
    graph = load(spec.data, home=home)
    encoder = Encoder(graph.num_features, spec.encoder, generator=torch.Generator().manual_seed(0))
    run = home / "runs" / version
    export_embeddings(run / "embeddings", encoder, graph, graph_sha256=graph.fingerprint(), dataset=spec.data.name)
    (run / "spec.json").write_text(spec.model_dump_json())
    target = home / "embeddings" / version
    build_version(run / "embeddings", run / "spec.json", target, version=version)
    return target


def own_edges(graph, nodes) -> dict[str, np.ndarray]:
    """What a client sends for nodes as they are: their raw features and the edges they have (undirected)."""
    source, target = graph.edge_index.numpy()
    at = [(j, int(s)) for j, node in enumerate(nodes) for s in source[target == node]]
    pairs = np.array(at, np.int64).reshape(-1, 2)
    return {
        "features": graph.x.to_dense().numpy()[nodes], "edge_node": pairs[:, 0], "edge_other": pairs[:, 1],
        "edge_weight": np.ones(len(pairs), np.float32), "edge_direction": np.zeros(len(pairs), np.int8),
        "replaces": np.array(nodes),
    }  # fmt: skip


def raw_graph(home: Path):
    data = TrainSpec.model_validate(SPEC).data
    return load(data.model_copy(update={"features": "raw"}), home=home)
