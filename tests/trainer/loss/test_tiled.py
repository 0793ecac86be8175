"""Rectangular contrasts: log-sum-exps against dense torch, and the forms of the loss that are built on them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize, softplus

from trainer.loss.nml import bank_terms, nml_terms
from trainer.loss.tiled import TileMemory, pair_sums


def unit(n, d=5, seed=0, grad=True):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(rows).requires_grad_(grad)


@pytest.mark.parametrize("n, m, tile", [(1, 1, 1), (7, 3, 2), (3, 17, 5), (40, 23, 64), (33, 70, 16)])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("memory", [None, 8])
def test_sums_and_their_gradients_equal_dense_ones(n, m, tile, weighted, both, memory):
    p, v = unit(n, seed=1), unit(m, seed=2)
    h, g = (unit(n, 4, seed=3), unit(m, 4, seed=4)) if weighted else (None, None)
    kept = None if memory is None else TileMemory(memory)
    rows, columns = pair_sums(p, v, h, g, tile=tile, both=both, memory=kept)
    z = p @ v.T
    s = h @ g.T if weighted else torch.zeros_like(z)
    expected = [(s + z).logsumexp(1), s.logsumexp(1), z.logsumexp(1)]
    found = list(rows)
    if both:
        expected += [(s + z).logsumexp(0), s.logsumexp(0), z.logsumexp(0)]
        found += list(columns)
    else:
        assert columns is None
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)

    leaves = [x for x in (p, v, h, g) if x is not None]
    differentiable = [k for k in range(len(found)) if k % 3 == 0 or (k % 3 == 1 and weighted)]
    mine, theirs = (
        torch.autograd.grad(
            sum((k + 1) * (x[k] * torch.arange(1, len(x[k]) + 1)).sum() for k in differentiable), leaves
        )
        for x in (found, expected)
    )
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_only_the_gradients_asked_for_are_computed():
    p, v, h, g = unit(6), unit(9, grad=False, seed=1), unit(6, seed=2), unit(9, grad=False, seed=3)
    rows, _ = pair_sums(p, v, h, g, tile=4, both=False)
    rows.weighted.sum().backward()
    assert p.grad is not None
    assert h.grad is not None
    assert v.grad is None
    assert g.grad is None


@pytest.mark.parametrize("factor", [None, 1_000.0])
def test_anchors_against_a_bank_equal_the_formula(factor):
    n, m, tau = 8, 30, 0.5
    u, v, bank = unit(n), unit(n, seed=1), unit(m, grad=False, seed=2)
    h, g = unit(n, seed=3), unit(m, grad=False, seed=4)
    positive = (u * v).sum(1) / tau
    factor = factor or m - 1
    terms = bank_terms(u / tau, positive, bank, h, g, factor=factor, anchors=n, tile=7)
    z, s = u @ bank.T / tau, h @ g.T
    weight = torch.softmax(s, 1)
    expected = -torch.log(positive.exp() / (positive.exp() + factor * (weight * z.exp()).sum(1))).mean()
    torch.testing.assert_close(terms.nml, expected)
    torch.testing.assert_close(terms.kl, (-math.log(m) - weight.log().mean(1)).mean())
    torch.testing.assert_close(terms.nce, (z.logsumexp(1) - positive).mean().detach())
    mine, theirs = (torch.autograd.grad(x, [u, v, h], retain_graph=True) for x in (terms.nml, expected))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_factor_is_explicit_so_that_a_batch_can_stand_for_the_graph():
    u, v = unit(10), unit(10, seed=1)
    plain, scaled = nml_terms(u, v, None, None), nml_terms(u, v, None, None, factor=5_000)
    z = u @ v.T
    gap = z.logsumexp(1) - math.log(10) - z.diagonal()
    back = z.logsumexp(0) - math.log(10) - z.diagonal()
    for terms, factor in ((plain, 9), (scaled, 5_000)):
        both = softplus(math.log(factor) + gap).mean() + softplus(math.log(factor) + back).mean()
        torch.testing.assert_close(terms.nml, both / 2)
    assert plain.kl.item() == pytest.approx(scaled.kl.item())


def test_room_for_tiles_is_given_back_when_batches_change_size():
    memory = TileMemory(1)  # room for 131,072 float64
    for n in (300, 299, 300, 299, 300):
        memory.forget_z()
        pair_sums(unit(n), unit(n, seed=1), None, None, memory=memory)
        assert memory.known_z(next(iter(tile for tile in _tiles(n)))) is not None


def _tiles(n):
    from trainer.loss.tiled import DEFAULT_TILE, tiles

    return tiles(n, n, DEFAULT_TILE)
