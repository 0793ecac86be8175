"""HomoGCL: its loss against N×N matrices written out, what its flags do, and what it learns."""

from __future__ import annotations

import pytest
import torch

import trainer
from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.learning.learner import Learner
from trainer.loss.clusters import centroids, soft_clusters
from trainer.presets import merged, preset_document, preset_spec
from trainer.run.checkpoint import Progress, load_newest, save_checkpoint

GRAPH = {"name": "synthetic", "synthetic": {"nodes": 70, "classes": 3, "degree": 5, "features": 20}}
SMALL = {
    "data": GRAPH, "encoder": {"hidden": 12, "dim": 8, "activation": "relu"}, "sampling": {"tile": 32, "keep_mb": 0},
    "optimiser": {"lr": 0.01, "epochs": 6}, "run": {"dtype": "float64", "track": False, "diagnose_every": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load(parse_spec({"data": GRAPH}).data)


def learner_of(graph, over=None, **method):
    method = {"name": "homogcl", "clusters": 4, "sharpness": 0.05} | method
    return Learner(parse_spec(merged(merged(SMALL, {"method": method}), over or {})), graph)


def only_step(learner, epoch=1):
    (step,) = learner.steps_of(epoch)
    return step


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def adjacency(view):
    dense = view.adjacency(0).matrix.to_dense()
    return ((dense != 0) & ~torch.eye(len(dense), dtype=torch.bool)).double()


def dense_loss(learner, step):
    """The formula with every matrix N×N; only centroids are shared with the code."""
    method = learner.spec.method
    u, v, z = step.embeddings
    draws = learner.generator("clusters", step.epoch)
    mu = centroids(z.detach(), method.clusters, iterations=method.iterations, generator=draws)
    pi = torch.softmax(-(z[:, None] - mu).square().sum(2) / method.sharpness, 1)
    kappa = unit(pi) @ unit(pi).T
    own = 1 if method.duplicated_positive else 0

    def direction(a, b, edges_a, edges_b):
        inter, intra = (
            (unit(a) @ unit(b).T / method.temperature).exp(),
            (unit(a) @ unit(a).T / method.temperature).exp(),
        )
        others = 1 - torch.eye(len(a), dtype=a.dtype)
        near = (edges_a * kappa * intra).sum(1)
        near = near / (edges_a.sum(1) + 0.01) if method.mean_neighbours else near
        positive = inter.diagonal() + near
        negative = ((1 - edges_a) * others * intra).sum(1) + ((1 - edges_b) * others * inter).sum(1)
        return -(positive / (positive + negative + own * inter.diagonal())).log().mean()

    if method.projection is not None:
        first, second = learner.parts["projector"].layers
        u, v = (
            torch.nn.functional.elu(part @ first.weight.T + first.bias) @ second.weight.T + second.bias
            for part in (u, v)
        )
    one, two = (adjacency(view) for view in step.views.views)
    contrast = (direction(u, v, one, two) + direction(v, u, two, one)) / 2
    edges = learner.graph.edge_index
    apart = (pi[edges[0]] - pi[edges[1]]).square().sum()
    return contrast + method.homophily * apart / ((edges.shape[1] + len(z)) * method.clusters)


def gradients(learner, loss):
    learner.zero_grad()
    loss.backward()
    return {name: part.grad.clone() for name, part in learner.named_parameters() if part.grad is not None}


@pytest.mark.parametrize(
    "method",
    [{}, {"mean_neighbours": True}, {"duplicated_positive": False}, {"projection": 6, "homophily": 3.0}],
    ids=["published", "mean", "once", "projector"],
)
def test_loss_and_gradients_equal_the_formula_with_dense_matrices(graph, method):
    learner = learner_of(graph, **method)
    step = only_step(learner)
    loss = learner.spec.method.loss(learner, step)
    mine = gradients(learner, loss.total)
    expected = dense_loss(learner, only_step(learner))
    theirs = gradients(learner, expected)
    assert loss.metrics["loss"] == pytest.approx(expected.item(), rel=1e-10)
    assert mine.keys() == theirs.keys()
    assert not torch.equal(adjacency(step.views.views[0]), adjacency(step.views.views[1])), "views drop alike"
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("twice", [True, False])
def test_without_edges_it_is_grace_without_a_projector_up_to_the_duplicated_positive(twice):
    draws = torch.Generator().manual_seed(0)
    x, none = torch.rand(40, 9, generator=draws).numpy(), torch.zeros(2, 0, dtype=torch.long)
    learner = learner_of(Graph.from_edges(none, x), duplicated_positive=twice, homophily=0)
    step = only_step(learner)
    u, v = (unit(part) for part in step.embeddings[:2])
    total = 0.0
    for a, b in ((u, v), (v, u)):
        inter, intra = (a @ b.T / 0.5).exp(), (a @ a.T / 0.5).exp()
        den = inter.sum(1) + intra.sum(1) - intra.diagonal() + twice * inter.diagonal()
        total += float((den / inter.diagonal()).log().mean().detach()) / 2
    assert learner.spec.method.loss(learner, step).metrics["loss"] == pytest.approx(total, rel=1e-10)


def test_k_means_finds_planted_clusters_and_memberships_follow_sharpness():
    draws = torch.Generator().manual_seed(1)
    planted = torch.randn(3, 5, generator=draws).double() * 10
    z = planted.repeat_interleave(30, 0) + torch.randn(90, 5, generator=draws) / 10
    found = centroids(z, 3, iterations=20, generator=torch.Generator().manual_seed(4))
    assert torch.cdist(planted, found).min(1).values.max() < 0.1
    assert soft_clusters(z, found, sharpness=1e-3).amax(1).min() > 0.99
    assert soft_clusters(z, found, sharpness=1e6).amax(1).max() < 0.34


def test_the_published_sharpness_leaves_no_doubt_and_a_soft_one_is_reported(graph):
    confidence = [
        learner.step(only_step(learner))["confidence"]
        for learner in (learner_of(graph, sharpness=value) for value in (1e-3, 10.0))
    ]
    assert confidence[0] > 0.9
    assert confidence[1] == pytest.approx(1 / 4, abs=0.05)


def test_stopped_and_resumed_is_the_same_to_the_bit(tmp_path, graph):
    def train(learner, epochs):
        return [learner.step(step) for epoch in epochs for step in learner.steps_of(epoch)]

    whole, first, resumed = (learner_of(graph, projection=6) for _ in range(3))
    figures = train(whole, range(1, 7))
    before = train(first, range(1, 4))
    save_checkpoint(tmp_path, first, Progress(3), spec_hash="x", keep=1)
    assert load_newest(tmp_path, resumed, spec_hash="x").epoch == 3
    assert before + train(resumed, range(4, 7)) == figures
    state = resumed.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())
    assert figures[-1]["loss"] < figures[0]["loss"]


@pytest.mark.parametrize(
    "over, words",
    [
        ({"method": {"clusters": 1}}, r"method\.clusters"),
        ({"method": {"sharpness": 0}}, r"method\.sharpness"),
        ({"method": {"clusters": 71}}, "clusters is 71, and the graph has 70"),
        ({"sampling": {"batch_size": 20}}, "homogcl cannot be trained with sampling.negatives=batch"),
        ({"run": {"workers": 2}}, "one process"),
    ],
)
def test_what_cannot_work_is_refused(graph, over, words):
    with pytest.raises(InvalidInput, match=words):
        learner_of(graph, over)


def test_presets_are_the_published_settings():
    cora, photo, wikics = (preset_spec("homogcl", name) for name in ("cora", "photo", "wikics"))
    assert (cora.method.clusters, cora.method.mean_neighbours, cora.data.features) == (10, True, "rownorm")
    assert (photo.method.projection, photo.optimiser.lr, photo.data.features) == (64, 1e-4, "raw")
    assert (wikics.method.clusters, wikics.optimiser.epochs, wikics.encoder.dim) == (30, 100, 256)


@pytest.mark.slow
def test_on_digits_it_beats_the_untrained_encoder(tmp_path):
    quick = {"run": {"track": False, "diagnose_every": 0}, "evaluation": {"figures": False, "cluster_seeds": 1}}
    form = {"encoder": preset_document("homogcl", "digits")["encoder"]}
    tests = {
        name: trainer.fit(
            parse_spec(merged(merged(preset_document(name, "digits"), quick), form)), tmp_path / name
        ).metrics["eval"]["probe"]["test"]
        for name in ("homogcl", "untrained")
    }
    assert tests["homogcl"] > tests["untrained"], tests
