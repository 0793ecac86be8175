"""Products at sparse pairs against the dense product, with gradients."""

from __future__ import annotations

import torch

from trainer.nn.pairs import pair_dots


def test_products_and_gradients_equal_those_taken_from_the_dense_product():
    draws = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 5, dtype=torch.float64, generator=draws).requires_grad_() for n in (7, 9))
    mask = torch.rand(7, 9, generator=draws) < 0.3
    mask[2] = False
    weights = torch.randn(int(mask.sum()), dtype=torch.float64, generator=draws)
    found = []
    for dots in (pair_dots(a, b, mask.double().to_sparse_csr()), (a @ b.T)[mask]):
        (dots.exp() * weights).sum().backward()
        found.append((dots.detach(), a.grad, b.grad))
        a.grad = b.grad = None
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)


def test_no_pairs_give_nothing():
    a = torch.randn(3, 2).requires_grad_()
    dots = pair_dots(a, a, torch.zeros(3, 3).to_sparse_csr())
    dots.sum().backward()
    assert dots.shape == (0,)
    assert not a.grad.any()
