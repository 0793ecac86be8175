"""Weights by tile are those of the whole matrix, and sums over their rows need no matrix."""

from __future__ import annotations

import pytest
import torch

from trainer.loss.tile_weights import ComputedWeights, RankedMask, SparseWeights, row_sums, weighted_sum
from trainer.loss.tiled import tiles


def assemble(weights, n, side):
    """The whole matrix from its tiles."""
    whole = torch.full((n, n), torch.nan, dtype=torch.float64)
    for at in tiles(n, n, side):
        part = weights.tile(at.rows, at.columns)
        whole[at.rows, at.columns] = 1.0 if part is None else part.double()
    return whole


@pytest.mark.parametrize("n, side", [(2, 1), (97, 10), (50, 512)])
def test_tiles_of_sparse_weights_and_of_masks_put_together_are_the_matrix(n, side):
    generator = torch.Generator().manual_seed(0)
    listed = torch.rand(n, n, generator=generator) < 0.1
    values = torch.rand(n, n, generator=generator)
    index = listed.nonzero().T
    shuffled = index[:, torch.randperm(index.shape[1], generator=generator)]
    weights = SparseWeights(shuffled, n, values[shuffled[0], shuffled[1]])
    assert torch.equal(assemble(weights, n, side), torch.where(listed, values, 1).double())
    assert torch.equal(assemble(SparseWeights(shuffled, n), n, side), (~listed).double())

    table = torch.rand(n, n, generator=generator).argsort(1)[:, : max(1, n // 3)]
    mask = RankedMask(table, 0)
    for length in (0, 1, table.shape[1]):
        mask.length = length
        assert torch.equal(assemble(mask, n, side), torch.ones(n, n).scatter_(1, table[:, :length], 0).double())


def test_symmetry_of_sparse_weights_is_found_out():
    both_ways, one_way = torch.tensor([[0, 3, 1], [3, 0, 1]]), torch.tensor([[0, 1], [3, 2]])
    assert SparseWeights(both_ways, 4).symmetric
    assert not SparseWeights(one_way, 4).symmetric
    assert SparseWeights(both_ways, 4, torch.tensor([0.5, 0.5, 0.2])).symmetric
    assert not SparseWeights(both_ways, 4, torch.tensor([0.5, 0.4, 0.2])).symmetric
    assert SparseWeights(torch.empty(2, 0, dtype=torch.long), 4).symmetric


def test_pairs_that_are_outside_or_ambiguous_are_refused():
    with pytest.raises(ValueError, match="between 0 and 3"):
        SparseWeights(torch.tensor([[0], [4]]), 4)
    with pytest.raises(ValueError, match="between 0 and 3, got -1"):
        RankedMask(torch.tensor([[1], [-1], [0], [0]]), 1)
    twice = torch.tensor([[0, 0], [1, 1]])
    with pytest.raises(ValueError, match="listed twice"):
        SparseWeights(twice, 4, torch.tensor([0.5, 0.6]))
    assert float(assemble(SparseWeights(twice, 4), 4, 4)[0, 1]) == 0  # left out twice is left out


@pytest.mark.parametrize("n, side", [(2, 1), (97, 10), (200, 64), (50, 512)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_weighted_sums_and_their_gradients_equal_dense_ones(n, side, dtype, tolerance):
    generator = torch.Generator().manual_seed(n)
    p = torch.rand(n, n, generator=generator, dtype=dtype)
    x = torch.randn(n, 5, generator=generator, dtype=dtype).requires_grad_()
    mine, expected = weighted_sum(ComputedWeights(lambda i, j: p[i, j]), x, tile=side), p @ x
    torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance * n)
    slope = torch.randn(n, 5, generator=generator, dtype=dtype)
    for a, b in zip(*(torch.autograd.grad((y * slope).sum(), x) for y in (mine, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * n)


def test_weighted_sum_saves_no_matrix_for_backward():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        weighted_sum(ComputedWeights(lambda i, j: torch.ones(i.stop - i.start, j.stop - j.start)),
                     torch.ones(300, 2, requires_grad=True), tile=64)  # fmt: skip
    assert sum(saved) <= 300 * 2


@pytest.mark.parametrize("side", [1, 10, 512])
def test_row_sums_leave_the_node_itself_out_unless_asked(side):
    p = torch.rand(23, 23, dtype=torch.float64)
    weights = ComputedWeights(lambda i, j: p[i, j])
    torch.testing.assert_close(row_sums(weights, 23, p, tile=side), p.sum(1) - p.diagonal())
    torch.testing.assert_close(row_sums(weights, 23, p, tile=side, with_self=True), p.sum(1))
