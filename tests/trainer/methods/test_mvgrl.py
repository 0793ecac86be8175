"""MVGRL: loss and gradients against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tests.trainer.methods.small_runs import learner_of, small_spec, train_epochs
from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.nn.sparse import Shuffled
from trainer.planning.estimate import estimate
from trainer.planning.plan import make_plan
from trainer.planning.shape import GraphShape
from trainer.presets import preset_spec


def dense_adjacency(graph: Graph) -> torch.Tensor:
    """D^{-1/2} (A + I) D^{-1/2}, edge by edge."""
    n = graph.num_nodes
    a = torch.eye(n, dtype=torch.float64)
    for target in range(n):
        for source in graph.indices[graph.indptr[target] : graph.indptr[target + 1]].tolist():
            a[target, source] += 1
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale


def test_a_shuffled_operator_multiplies_shuffled_rows_and_so_does_its_gradient():
    draws = torch.Generator().manual_seed(0)
    matrix, dense = torch.randn(6, 6, generator=draws), torch.randn(6, 3, generator=draws, requires_grad=True)
    order = torch.randperm(6, generator=draws)
    (Shuffled(matrix, order) @ dense).square().sum().backward()
    found, dense.grad = dense.grad, None
    (matrix @ dense[order]).square().sum().backward()
    torch.testing.assert_close(found, dense.grad)


@pytest.mark.parametrize("layers", [1, 2])
def test_loss_and_gradients_equal_those_of_dense_matrices(layers):
    learner = learner_of("mvgrl", {"encoder": {"layers": layers}})
    step = next(learner.steps_of(1))
    loss = learner.spec.method.loss(learner, step)
    loss.total.backward()
    mine = [parameter.grad.clone() for parameter in learner.trained]

    learner.zero_grad()
    x, adjacency = learner.graph.x.to_dense().double(), dense_adjacency(learner.graph)
    diffusion = torch.zeros_like(adjacency)
    for power in range(20):
        diffusion += 0.2 * 0.8**power * torch.linalg.matrix_power(adjacency, power)
    diffusion += 0.8**20 * torch.linalg.matrix_power(adjacency, 20)
    shuffled = x[torch.randperm(90, generator=learner.generator("shuffle", 1))]

    def through(encoder, matrix, hidden):
        for layer, (weight, bias) in enumerate(zip(encoder.weights, encoder.biases, strict=True)):
            hidden = matrix @ hidden @ weight + bias
            slope = encoder.finishes[layer].activation.slope
            hidden = torch.where(hidden > 0, hidden, slope * hidden)
        return hidden

    first, second = learner.encoder, learner.encoder.diffused
    h1, h2 = through(first, adjacency, x), through(second, diffusion, x)
    h3, h4 = through(first, adjacency, shuffled), through(second, diffusion, shuffled)
    g1, g2 = torch.sigmoid(h1.mean(0)), torch.sigmoid(h2.mean(0))
    score = learner.parts["discriminator"]
    logits = torch.stack([
        torch.einsum("nd,de,e->n", h, score.weight, g) + score.bias
        for h, g in ((h2, g1), (h1, g2), (h4, g1), (h3, g2))
    ])  # fmt: skip
    labels = torch.tensor([1.0, 1, 0, 0], dtype=torch.float64)[:, None].expand_as(logits)
    expected = binary_cross_entropy_with_logits(logits, labels)
    expected.backward()
    assert loss.metrics["loss"] == pytest.approx(expected.item(), rel=1e-12)
    for found, parameter in zip(mine, learner.trained, strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=0, atol=1e-10)


def test_the_embedding_is_the_sum_of_both_encoders():
    learner = learner_of("mvgrl")
    train_epochs(learner, 1, 2)
    h1, h2, *_ = learner.spec.method.encode(learner, next(learner.steps_of(3)))
    torch.testing.assert_close(learner.encoding.embed(), (h1 + h2).detach())


def test_it_learns_to_tell_shuffled_nodes():
    learner = learner_of("mvgrl", {"optimiser": {"lr": 0.01, "epochs": 60}})
    figures = train_epochs(learner, 1, 60)
    assert figures[-1]["loss"] < figures[0]["loss"]
    assert figures[-1]["told_apart"] > 0.6


def test_settings_that_cannot_work_are_refused():
    for over, words in (
        ({"encoder": {"diffusion": "none"}}, r"encoder\.diffusion to ppr"),
        ({"encoder": {"layers": 0}}, r"encoder\.layers"),
        ({"sampling": {"batch_size": 30}}, "mvgrl cannot be trained"),
        ({"run": {"workers": 2}}, "workers"),
    ):
        with pytest.raises(InvalidInput, match=words):
            small_spec("mvgrl", over)


def test_memory_grows_with_the_nodes_and_not_with_their_square():
    spec = preset_spec("mvgrl", "synthetic")
    needs = []
    for nodes in (20_000, 80_000):
        shape = GraphShape(nodes, 10 * nodes, 100)
        told = estimate(make_plan(spec, shape, 10**12).spec, shape)
        needs.append(told.parts["encoding"] + told.parts["contrast"] + told.parts["tables"])
    assert 3.5 < needs[1] / needs[0] < 4.5


@pytest.mark.slow
def test_a_run_on_digits_beats_the_untrained_encoder(tmp_path):
    import trainer
    from trainer.config import parse_spec
    from trainer.presets import merged, preset_document

    tests = {}
    for name in ("untrained", "mvgrl"):
        document = merged(preset_document(name, "digits"), {
            "encoder": {**preset_document("mvgrl", "digits")["encoder"], "dim": 64},
            "evaluation": {"figures": False, "cluster_seeds": 1}, "run": {"track": False},
        })  # fmt: skip
        tests[name] = trainer.fit(parse_spec(document), tmp_path / name).metrics["eval"]["probe"]["test"]
    assert tests["mvgrl"] > tests["untrained"]
