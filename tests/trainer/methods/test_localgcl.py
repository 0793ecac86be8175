"""LOCAL-GCL: loss and gradients written out node by node, and what random features lose against the exact sums."""

from __future__ import annotations

import math

import pytest
import torch

from tests.trainer.methods.small_runs import learner_of, small_spec, train_epochs
from trainer.errors import InvalidInput
from trainer.loss import local
from trainer.loss.infonce import intra_log_sums
from trainer.loss.local import NeighbourMean, draw_frequencies, random_log_sums
from trainer.methods.localgcl import EXACT_UP_TO, LocalGcl
from trainer.planning.estimate import estimate
from trainer.planning.plan import make_plan
from trainer.planning.shape import GraphShape
from trainer.presets import preset_spec


def by_hand(z, graph, tau):
    n = len(z)
    z = z / z.norm(dim=1, keepdim=True)
    logits = z @ z.T / tau
    near = logits.new_zeros(())
    for i in range(n):
        neighbours = graph.indices[graph.indptr[i] : graph.indptr[i + 1]].tolist()
        if neighbours:
            near = near + sum(logits[i, j] for j in neighbours) / len(neighbours)
    return (-near + (logits.exp().sum(1) / n).log().sum()) / n


def test_loss_and_gradients_equal_those_written_out():
    learner = learner_of("localgcl")
    step = next(learner.steps_of(1))
    loss = learner.spec.method.loss(learner, step)
    loss.total.backward()
    mine = [parameter.grad.clone() for parameter in learner.trained]
    learner.zero_grad()
    expected = by_hand(learner.encoder(learner.encoding.x, learner.encoding.clean), learner.graph, 0.5)
    expected.backward()
    assert loss.metrics["loss"] == pytest.approx(expected.item(), rel=1e-12)
    assert loss.metrics["apart"] - loss.metrics["near"] == pytest.approx(expected.item(), rel=1e-12)
    for found, parameter in zip(mine, learner.trained, strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=0, atol=1e-10)


def test_a_node_without_neighbours_has_no_positive():
    mean = NeighbourMean(torch.tensor([0, 2, 2, 3]), torch.tensor([1, 2, 0], dtype=torch.int32))
    rows = torch.tensor([[1.0, 0], [3, 4], [5, 6]])
    assert mean(rows).tolist() == [[4, 5], [0, 0], [1, 0]]
    assert mean(rows.double()).dtype == torch.float64


@pytest.mark.parametrize("piece", [7, 2_048])
def test_random_sums_and_gradients_equal_the_dense_features(piece, monkeypatch):
    monkeypatch.setattr(local, "_PIECE", piece)
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(40, 6, dtype=torch.float64, generator=draws, requires_grad=True)
    omega = draw_frequencies(50, 6, 0.5, z, draws)
    found = random_log_sums(z, omega, tau=0.5)
    found.square().sum().backward()
    mine, z.grad = z.grad, None
    unit = z / z.norm(dim=1, keepdim=True)
    kernel = torch.cos((unit[:, None] - unit) @ omega.T).mean(2)  # cos a cos b + sin a sin b
    expected = (kernel.sum(1) * math.exp(2)).log()
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(mine, z.grad, rtol=0, atol=1e-10)


def test_the_error_of_random_sums_falls_with_more_of_them():
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(300, 16, dtype=torch.float64, generator=draws)
    exact = intra_log_sums(z, tau=0.5)
    errors = [
        (random_log_sums(z, draw_frequencies(count, 16, 0.5, z, draws), tau=0.5) - exact).abs().mean().item()
        for count in (256, 4_096, 65_536)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[1] < 0.1, "a tenth of a log-sum with the default number"


def test_an_impossible_estimate_is_held_at_the_smallest():
    z = torch.eye(2, dtype=torch.float64)
    omega = torch.tensor([[math.pi, 0.0]], dtype=torch.float64)  # cos π = −1 for the pair, 1 for itself
    assert random_log_sums(z, omega, tau=1.0).tolist() == pytest.approx([math.log(1e-8) + 1] * 2)


def test_the_choice_of_sums_follows_the_size_unless_it_is_made():
    assert LocalGcl().is_exact(EXACT_UP_TO)
    assert not LocalGcl().is_exact(EXACT_UP_TO + 1)
    assert LocalGcl(sums="exact").is_exact(10**6)
    assert not LocalGcl(sums="random").is_exact(10)


@pytest.mark.parametrize("method", [{}, {"sums": "random", "features": 512}, {"sums": "random", "redraw": False}])
def test_neighbours_come_closer_and_all_nodes_apart(method):
    learner = learner_of("localgcl", {"method": method, "optimiser": {"lr": 0.01, "epochs": 20}})
    exact = [by_hand(learner.encoding.embed(), learner.graph, 0.5).item()]
    train_epochs(learner, 1, 20)
    exact.append(by_hand(learner.encoding.embed(), learner.graph, 0.5).item())
    assert exact[1] < exact[0]


def test_settings_that_cannot_work_are_refused():
    for over, words in (
        ({"method": {"temperature": 0.026}, "run": {"dtype": "float64"}, "encoder": {"layers": 0}}, "layers"),
        ({"method": {"temperature": 0.02}}, "temperature"),
        ({"method": {"temperature": 0.1, "sums": "random"}}, "sums to exact"),
        ({"method": {"features": 2}}, "features"),
        ({"sampling": {"batch_size": 30}}, "localgcl cannot be trained"),
    ):
        with pytest.raises(InvalidInput, match=words):
            small_spec("localgcl", over)


def test_beyond_the_exact_size_nothing_grows_faster_than_the_nodes():
    spec = preset_spec("localgcl", "synthetic")
    needs = []
    for nodes in (50_000, 200_000):
        shape = GraphShape(nodes, 10 * nodes, 100)
        told = estimate(make_plan(spec, shape, 10**12).spec, shape)
        assert told.parts["tiles"] == 0
        needs.append(told.parts["encoding"] + told.parts["contrast"] + told.parts["tables"])
    assert needs[1] / needs[0] < 4.2


@pytest.mark.slow
def test_a_run_on_digits_beats_the_untrained_encoder(tmp_path):
    import trainer
    from trainer.config import parse_spec
    from trainer.presets import merged, preset_document

    tests = {}
    for name in ("untrained", "localgcl"):
        document = merged(preset_document(name, "digits"), {
            "encoder": {"hidden": 128, "dim": 128, "layers": 2, "activation": "relu"},
            "evaluation": {"figures": False, "cluster_seeds": 1}, "run": {"track": False},
        })  # fmt: skip
        tests[name] = trainer.fit(parse_spec(document), tmp_path / name).metrics["eval"]["probe"]["test"]
    assert tests["localgcl"] > tests["untrained"]
