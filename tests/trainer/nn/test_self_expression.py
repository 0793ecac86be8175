"""Sparse self-expression against N×N matrices and autograd on 50 nodes: what is exact, and what the cap costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.nn.self_expression import SelfExpression, balls, fit, with_loops

HOPS, STRENGTH, SHARE = 2, 1.0, 0.3
FIT = {"features": 3, "strength": STRENGTH, "share": SHARE, "steps": 10, "lr": 0.1}


@pytest.fixture(scope="module")
def graph():
    data = {"name": "synthetic", "synthetic": {"nodes": 50, "classes": 3, "degree": 3, "features": 20}}
    return load(parse_spec({"data": data}).data)


@pytest.fixture(scope="module")
def z():
    return torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def expression(graph, most=50):
    return SelfExpression(graph.indptr, graph.indices, hops=HOPS, most=most, seed=3).double()


def within(graph, hops: int) -> Tensor:
    """Who is reached in at most so many hops, by powers of A + I."""
    step = torch.eye(graph.num_nodes)
    step[graph.edge_index[0], graph.edge_index[1]] = 1
    return (torch.linalg.matrix_power(step, hops) > 0).fill_diagonal_(False)


def dense_fit(c: Tensor, active: Tensor, z: Tensor) -> Tensor:
    """The objective as it is written, differentiated by autograd, with N×N coefficients."""
    c = c.clone().requires_grad_()
    optimiser = torch.optim.Adam([c], lr=FIT["lr"])
    for _ in range(FIT["steps"]):
        norms = torch.cat([column[column != 0].norm().view(1) for column in c.T if bool((column != 0).any())])
        loss = torch.linalg.matrix_norm(z - c.relu() @ z) / FIT["features"]
        loss = loss + STRENGTH * (SHARE * c.abs().sum() + (1 - SHARE) / 2 * norms.sum())
        (gradient,) = torch.autograd.grad(loss, c)
        c.grad = gradient * active
        optimiser.step()
    return c.detach()


def dense(model: SelfExpression, pairs: Tensor, values: Tensor) -> Tensor:
    out = values.new_zeros(model.n * model.n)
    out[pairs] = values
    return out.view(model.n, model.n)


def dense_renew(model: SelfExpression, graph, z: Tensor) -> tuple[Tensor, Tensor]:
    """C and S of the first renewal, from the same first values."""
    every = torch.arange(model.n**2)
    first = model._first_values(every).double().view(model.n, model.n)
    active = within(graph, 1)
    c = dense_fit(first * active, active, z)
    cosines = normalize(z - c.relu() @ z) @ normalize(z).T
    now = (cosines.abs() >= STRENGTH * SHARE) & within(graph, HOPS)
    c = dense_fit(torch.where(active, c, first) * now, now, z)
    return c, (c.relu() + c.relu().T) / 2


def test_coefficients_and_similarities_equal_those_of_dense_matrices(graph, z):
    model = expression(graph)
    c, s = dense_renew(model, graph, z)
    model.renew(z, **FIT)
    assert int(model.capped) == 0
    torch.testing.assert_close(dense(model, model.pairs, model.coefficients), c, rtol=0, atol=1e-10)
    torch.testing.assert_close(model.similarity().to_dense(), s, rtol=0, atol=1e-10)
    assert not torch.equal(c != 0, within(graph, 1)), "the second fit had the pairs of the first"


def test_what_the_cap_leaves_out_is_measured(graph, z):
    """The relative error of S falls with the cap and is 0 where no node has more pairs."""
    errors, capped = [], []
    _, s = dense_renew(expression(graph), graph, z)
    for most in (1, 2, 4, 8, 50):
        model = expression(graph, most)
        model.renew(z, **FIT)
        errors.append(float((model.similarity().to_dense() - s).norm() / s.norm()))
        capped.append(int(model.capped))
        assert model.pairs.div(50, rounding_mode="floor").bincount().max() <= most
    assert capped == sorted(capped, reverse=True)
    assert capped[-1] == 0
    assert errors == pytest.approx([0.859, 0.512, 0.454, 0.248, 0], abs=0.01)


@pytest.mark.parametrize("theta", [0.5, 1.0, 3.0])
def test_similarities_are_symmetric_without_a_diagonal_and_between_0_and_1(graph, z, theta):
    model = expression(graph)
    model.renew(z, **FIT)
    before = model.similarity().to_dense()
    model.scale(theta, torch.Generator().manual_seed(0))
    s = model.similarity().to_dense()
    assert torch.equal(s, s.T)
    assert not s.diagonal().any()
    assert s.min() == 0
    torch.testing.assert_close(s, (theta * before / before.max()).clamp(max=1))


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("block", [7, 64, 1_000])
def test_balls_are_those_of_powers_of_the_adjacency(graph, hops, block):
    arrays = with_loops(graph.indptr.numpy(), graph.indices.numpy())
    found = torch.cat([near for _, near in balls(*arrays, hops, block)])
    assert torch.equal(found, within(graph, hops))


def test_a_directed_ball_follows_the_edges():
    indptr, indices = with_loops(torch.tensor([0, 0, 1, 2]).numpy(), torch.tensor([0, 1]).numpy())  # 0 → 1 → 2
    ((_, near),) = balls(indptr, indices, 2)
    assert near.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def test_another_number_of_pairs_is_restored_to_the_bit(graph, z):
    trained, fresh = expression(graph), expression(graph)
    trained.renew(z, **FIT)
    assert trained.pairs.shape != fresh.pairs.shape
    fresh.load_state_dict(trained.state_dict())
    for name, value in trained.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name
    for model in (trained, fresh):
        model.renew(z.flip(1), **FIT)
    assert torch.equal(trained.similarities, fresh.similarities)


def test_without_an_active_pair_nothing_is_similar(graph, z):
    model = expression(graph)
    model.renew(z, **FIT | {"strength": 100.0})
    model.scale(1.0, torch.Generator().manual_seed(0))
    assert len(model.pairs) == len(model.similarities) == 0
    model.renew(z, **FIT)
    assert len(model.pairs)


def test_as_published_the_penalties_alone_decide_the_coefficients(graph, z):
    """The data term is divided by the number of features: with Cora's 1,433 it moves them by less than a thousandth."""
    model = expression(graph)
    pattern, settings = model._pattern(model.pairs, model.coefficients), FIT | {"features": 1_433}
    with_data, without = fit(z, pattern, **settings), fit(torch.zeros_like(z), pattern, **settings)
    assert 0 < float((with_data - without).norm() / with_data.norm()) < 1e-3
    assert without.norm() < model.coefficients.norm()
