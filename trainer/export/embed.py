"""Embeddings in memory, for graphs whose embeddings fit there; export_embeddings writes those of any size."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.export.embeddings import ENCODER_FILE, read_encoder
from trainer.export.layerwise import embed_layerwise, model_digest
from trainer.nn.encoder import Encoder
from trainer.run.directory import read_spec


def embed(run_dir: str | Path, graph: Graph) -> np.ndarray:
    """Embeddings of a graph by the encoder of a finished run.  -> [N, dim] float32.

    Args:
        graph: the one trained on, or another with the same feature columns, prepared in the same way (`data.features`).

    Raises:
        InvalidInput: not a finished run, or a graph with another number of features.
    """
    run = Path(run_dir)
    encoder = read_encoder(run / "embeddings" / ENCODER_FILE, read_spec(run).encoder)
    if graph.num_features != encoder.num_features:
        raise InvalidInput(
            f"{run} was trained on {encoder.num_features} features, and this graph has {graph.num_features}."
        )
    return embed_in_memory(encoder, graph)


def embed_in_memory(encoder: Encoder, graph: Graph, *, graph_digest: str | None = None) -> np.ndarray:
    """Embeddings of the clean graph in eval mode, [N, dim] float32; graph_digest: its fingerprint, if it is known."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "vectors.npy"
        embed_layerwise(encoder, graph, file, model_digest=model_digest(encoder), graph_digest=graph_digest)
        vectors: np.ndarray = np.load(file)
    return vectors
