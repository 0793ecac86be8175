"""Forms of the encoder: what is trained on the whole graph is what is exported, piece by piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data.graph import Graph
from trainer.export.embeddings import export_embeddings, read_embeddings, read_encoder
from trainer.nn.encoder import Encoder
from trainer.nn.sparse import PersonalisedPageRank, SparseOperator
from trainer.nn.views import Propagation
from trainer.spec.encoder import EncoderSpec

FORMS = [
    EncoderSpec(layers=0),
    EncoderSpec(layers=0, smoothing=2),
    EncoderSpec(hidden=12, dim=6, smoothing=1),
    EncoderSpec(hidden=12, dim=6, norm="batch", last_activation="prelu"),
    EncoderSpec(hidden=5, dim=9, layers=3, norm="layer", activation="elu"),
    EncoderSpec(dim=7, layers=1, last_activation="relu", diffusion="ppr"),
    EncoderSpec(hidden=4, dim=7, last_activation="prelu", diffusion="ppr", smoothing=2),
    EncoderSpec(dim=7, layers=1, powers=(0.5, 0, -1)),
]


def a_graph(n: int = 60, features: int = 10, *, sparse: bool = False) -> Graph:
    draws = np.random.default_rng(n)
    x = draws.standard_normal((n, features))
    if sparse:
        x *= draws.random((n, features)) < 0.15
    return Graph.from_edges(draws.integers(0, n, (2, 3 * n)), x)


def trained(spec: EncoderSpec, graph: Graph) -> tuple[Encoder, torch.Tensor]:
    """An encoder whose statistics and biases are not those it started with, and its readout of the clean graph."""
    encoder = Encoder(graph.num_features, spec, generator=torch.Generator().manual_seed(1)).double()
    view = Propagation(graph.indptr, graph.indices, dtype=torch.float64).whole()
    x = graph.x.double()
    features = SparseOperator(x) if x.layout == torch.sparse_csr else x
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1
        encoder.train()(features, view)
        return encoder.eval(), encoder.readout(features, view)


@pytest.mark.parametrize("spec", FORMS, ids=str)
@pytest.mark.parametrize("sparse", [False, True])
def test_export_equals_the_readout_of_the_whole_graph_and_reads_back(spec: EncoderSpec, sparse: bool, tmp_path: Path):
    graph = a_graph(sparse=sparse)
    encoder, expected = trained(spec, graph)
    export_embeddings(tmp_path, encoder, graph, graph_sha256="x", buffer_mb=1)
    vectors, _ = read_embeddings(tmp_path)
    np.testing.assert_allclose(vectors, expected.numpy(), rtol=1e-5, atol=1e-6)
    again = read_encoder(tmp_path / "encoder.safetensors", spec)
    assert all(
        torch.equal(a, b) for a, b in zip(again.state_dict().values(), encoder.state_dict().values(), strict=True)
    )


def test_batch_statistics_are_used_only_after_training():
    graph = a_graph()
    spec = EncoderSpec(hidden=8, dim=4, norm="batch", batch_momentum=1.0)
    encoder = Encoder(graph.num_features, spec, generator=torch.Generator().manual_seed(1))
    view = Propagation(graph.indptr, graph.indices).whole()
    while_training = encoder.train()(graph.x, view)
    torch.testing.assert_close(encoder.eval()(graph.x, view), while_training, rtol=0.02, atol=0.02)


def test_personalised_pagerank_is_within_its_bound_of_the_inverse():
    graph = a_graph(200)
    adjacency = Propagation(graph.indptr, graph.indices, dtype=torch.float64).whole().adjacency(0)
    diffusion = PersonalisedPageRank(adjacency)
    ours = diffusion @ torch.eye(200, dtype=torch.float64)
    dense = adjacency @ torch.eye(200, dtype=torch.float64)
    a = diffusion.teleport
    exact = a * torch.linalg.inv(torch.eye(200, dtype=torch.float64) - (1 - a) * dense)
    assert float((ours - exact).abs().max()) <= (1 - a) ** diffusion.steps
    assert float((ours - exact).abs().max()) > 0


def test_new_rows_of_features_need_no_encoder_layers():
    spec = EncoderSpec(layers=0)
    graph = a_graph()
    encoder, expected = trained(spec, graph)
    assert encoder.dim == graph.num_features
    torch.testing.assert_close(expected, graph.x.double())
