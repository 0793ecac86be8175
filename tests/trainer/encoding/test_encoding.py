"""Whole, sampled and cached encodings of the same graph must agree wherever they see the same neighbours."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from tests.trainer.methods.epochs import train_epoch
from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.encoding import batch_view
from trainer.encoding.batch_view import degree_scale
from trainer.encoding.sampled import EpochViews, SampledPair
from trainer.files.documents import apply_overrides
from trainer.learning.learner import Learner
from trainer.nn.views import Propagation, draw_augmentations
from trainer.sampling.batches import Batches
from trainer.spec.data import DataSpec

SMALL = {
    "data": {"name": "digits"}, "encoder": {"hidden": 12, "dim": 8}, "run": {"dtype": "float64"},
    "method": {"inner_steps": 2, "detach_metric": False, "metric": {"hidden": 8}}, "optimiser": {"lr": 0.01},
}  # fmt: skip


def graph_of(*, features=10, sparse=False, weighted=False, n=130, edges=500, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)) * (rng.random((n, features)) < (0.2 if sparse else 1))
    weight = rng.random(edges) + 0.1 if weighted else None
    return Graph.from_edges(rng.integers(n, size=(2, edges)), x, weight=weight, directed=True)


def build(graph, *overrides):
    return Learner(parse_spec(apply_overrides(SMALL, list(overrides))), graph)


def backward(learner, step):
    learner.encoder.zero_grad()
    step.views.backward(learner.spec.method.loss(learner, step).total)


def encoder_gradient(learner, epoch=1):
    (step,) = learner.steps_of(epoch)
    backward(learner, step)
    return [parameter.grad.clone() for parameter in learner.encoder.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("features, sparse", [(10, False), (30, False), (30, True), (10, True)])
@pytest.mark.parametrize("weighted, undirected", [(True, "false"), (False, "true")])
def test_cached_gradients_equal_those_of_the_whole_graph(layers, features, sparse, weighted, undirected):
    graph = graph_of(features=features, sparse=sparse, weighted=weighted)
    assert (graph.x.layout == torch.sparse_csr) == sparse
    common = [f"encoder.layers={layers}", f"augment.undirected={undirected}"]
    neighbors = f"sampling.num_neighbors={[-1] * layers}"
    whole = encoder_gradient(build(graph, *common))
    cached = encoder_gradient(build(graph, *common, "sampling.negatives=graph", "sampling.batch_size=31", neighbors))
    for one, other in zip(whole, cached, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_loss_curve_of_cached_batches_is_that_of_the_whole_graph():
    graph = graph_of(n=200, edges=900)
    whole = build(graph)
    cached = build(graph, "sampling.negatives=graph", "sampling.batch_size=64", "sampling.num_neighbors=[-1, -1]")
    for epoch in range(1, 8):
        one, other = train_epoch(whole, epoch), train_epoch(cached, epoch)
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.skipif("NML_DATA" not in os.environ, reason="Cora is looked for under NML_DATA, which is not set")
def test_on_cora_the_loss_curve_of_cached_batches_is_that_of_the_whole_graph():
    graph = load(DataSpec(name="cora"))
    small = ["encoder.hidden=32", "encoder.dim=32", "method.metric.hidden=32", "run.dtype=float32"]
    whole = build(graph, *small)
    cached = build(
        graph, *small, "sampling.negatives=graph", "sampling.batch_size=1024", "sampling.num_neighbors=[-1, -1]"
    )
    for epoch in range(1, 6):
        one, other = train_epoch(whole, epoch), train_epoch(cached, epoch)
        assert one == pytest.approx(other, rel=1e-4)


def test_a_batch_with_all_its_neighbours_is_encoded_as_in_the_whole_graph():
    graph = graph_of(weighted=True)
    whole = build(graph, "augment.feature_mask=[0, 0]")
    sampled = build(
        graph, "augment.feature_mask=[0, 0]", "sampling.negatives=batch", "sampling.batch_size=40",
        "sampling.num_neighbors=[-1, -1]",
    )  # fmt: skip
    (everything,) = whole.steps_of(2)
    seen = []
    for step in sampled.steps_of(2):
        nodes = step.views.nodes
        for mine, of_all in zip(step.embeddings, everything.embeddings, strict=True):
            torch.testing.assert_close(mine, of_all[nodes])
        seen.append(nodes)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(graph.num_nodes))


def test_sampled_neighbours_stand_for_all_on_average():
    """One layer is linear in the sampled edges, so its mean over many samples must approach the whole."""
    graph = graph_of(n=60, edges=900)
    common = ["encoder.layers=1", "augment.feature_mask=[0, 0]", "augment.edge_drop=[0.3, 0.3]"]
    (everything,) = build(graph, *common).steps_of(1)
    exact = everything.embeddings[0].detach()
    sampled = build(graph, *common, "sampling.negatives=batch", "sampling.batch_size=60", "sampling.num_neighbors=[4]")
    encoding = sampled.encoding
    total, rounds = torch.zeros_like(exact), 400
    views = EpochViews(encoding.spec, graph, 1, encoding.device, encoding.dtype, rates=None, redraw_columns=False)
    for seed in range(rounds):
        batches = Batches(graph, batch_size=60, num_neighbors=[4], seed=seed)
        (batch,) = batches.epoch(1, shuffle=False)
        total += SampledPair(encoding.encoder, views, batch, torch.Generator()).encode()[0].detach()
    single = (SampledPair(encoding.encoder, views, batch, torch.Generator()).encode()[0].detach() - exact).norm()
    assert single / exact.norm() > 0.2  # a single sample is far off
    assert (total / rounds - exact).norm() < 1.5 * single / rounds**0.5  # as errors without a bias average out


def test_degrees_of_a_view_come_out_of_slices_as_out_of_the_whole(monkeypatch):
    graph = graph_of(weighted=True)
    spec = parse_spec(SMALL)
    augmentation, _ = draw_augmentations(spec.augment, graph.num_features, seed=3, epoch=4)
    monkeypatch.setattr(batch_view, "_EDGES_AT_ONCE", 13)
    scale = degree_scale(graph, augmentation, torch.float64)
    matrix = Propagation(graph.indptr, graph.indices, graph.weight, torch.float64).view(augmentation).adjacency(0)
    torch.testing.assert_close(matrix.matrix.to_dense().diagonal(), scale.square())


def test_noise_is_replayed_in_the_backward_of_cached_batches():
    """With random slopes the gradient must belong to the very embeddings that the loss saw."""
    graph = graph_of()
    overrides = ["encoder.activation=rrelu_random", "sampling.negatives=graph", "sampling.batch_size=31",
                 "sampling.num_neighbors=[5, 5]"]  # fmt: skip
    (step,) = build(graph, *overrides).steps_of(1)
    again = [pair.encode() for pair in step.views._batches()]
    u, v = step.embeddings
    assert torch.equal(torch.cat([first for first, _ in again]), u)
    assert torch.equal(torch.cat([second for _, second in again]), v)
    assert not torch.equal(step.views.encode()[0], u)


def saved_bytes(learner):
    """Most bytes autograd keeps for backward at any time within an epoch."""
    alive = most = 0

    class Kept:
        def __init__(self, tensor):
            nonlocal alive, most
            self.tensor = tensor
            alive += tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            tensor = self.tensor
            alive -= tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        for step in learner.steps_of(1):
            backward(learner, step)
    return most


def test_memory_of_cached_batches_is_linear_in_n_with_the_activations_of_one_batch_only():
    overrides = [
        "sampling.batch_size=64",
        "sampling.num_neighbors=[3, 3]",
        "encoder.hidden=256",
        "method.metric.kind=uniform",
    ]
    small, large = (
        saved_bytes(build(graph_of(n=n, edges=6 * n), *overrides, "sampling.negatives=graph")) for n in (500, 2000)
    )
    whole = saved_bytes(build(graph_of(n=2000, edges=12_000), "encoder.hidden=256", "method.metric.kind=uniform"))
    assert large < 4 * small
    assert large < whole / 4
    one, other = (
        saved_bytes(build(graph_of(n=n, edges=6 * n), *overrides, "sampling.negatives=batch")) for n in (500, 2000)
    )
    assert other < 1.2 * one  # batches do not know how large the graph is


def test_feature_columns_are_masked_anew_for_each_batch_but_edges_once_an_epoch():
    graph = graph_of(features=40)
    learner = build(graph, "sampling.negatives=batch", "sampling.batch_size=31", "sampling.num_neighbors=[-1, -1]")
    columns = [step.views.views[0].columns for step in learner.steps_of(1)]
    assert len({tuple(mask.tolist()) for mask in columns}) > 1
