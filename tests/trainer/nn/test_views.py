"""Views, propagation and encoder against PyG's own GCN."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import GCNConv

from trainer.data.features import csr
from trainer.nn.encoder import Encoder
from trainer.nn.sparse import SparseOperator, row_of_entry, rows_of, transposed
from trainer.nn.views import Propagation, draw_augmentations
from trainer.spec.encoder import AugmentSpec, EncoderSpec


def random_graph(n=40, edges=200, seed=0, symmetric=False):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(n, (2, edges), generator=generator)
    pairs = pairs[:, pairs[0] != pairs[1]]
    if symmetric:
        pairs = torch.cat([pairs, pairs.flip(0)], 1)
    keys = torch.unique(pairs[1] * n + pairs[0])  # target-major, sorted: CSR order
    target, source = keys // n, keys % n
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(target, minlength=n).cumsum(0)])
    return indptr, source, torch.stack([source, target])


def drawn(propagation, features, *, edge_drop, feature_mask, seed=0, undirected=False):
    spec = AugmentSpec(edge_drop=(edge_drop,) * 2, feature_mask=(feature_mask,) * 2, undirected=undirected)
    return propagation.view(draw_augmentations(spec, features, seed=seed, epoch=1)[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_propagation_equals_pyg_normalisation(weighted, drop):
    indptr, indices, edge_index = random_graph()
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(len(indices), generator=generator, dtype=torch.float64) + 0.1 if weighted else None
    kept = torch.rand(len(indices), generator=generator) > 0.4 if drop else None
    propagation = Propagation(indptr, indices, weight, torch.float64)
    stays = None
    if kept is not None:  # in the order of the matrix, where loops stand among the edges
        entries = propagation.over(None).matrix
        row, column = row_of_entry(entries.crow_indices()), entries.col_indices()
        stays = row == column
        stays[~stays] = kept
    operator = propagation.over(stays)

    conv = GCNConv(5, 5, bias=False).double()
    with torch.no_grad():
        conv.lin.weight.copy_(torch.eye(5))
    x = torch.randn(40, 5, dtype=torch.float64)
    chosen = slice(None) if kept is None else kept
    expected = conv(x, edge_index[:, chosen], None if weight is None else weight[chosen])
    torch.testing.assert_close(operator @ x, expected)
    torch.testing.assert_close(operator.transpose.to_dense(), operator.matrix.to_dense().T)


def test_encoder_on_a_view_equals_pyg_on_masked_data_in_value_and_gradient():
    indptr, indices, edge_index = random_graph()
    x = torch.randn(40, 7, dtype=torch.float64) * (torch.rand(40, 7) < 0.4)
    view = drawn(Propagation(indptr, indices, dtype=torch.float64), 7, edge_drop=0.0, feature_mask=0.5, seed=3)
    assert 0 < int(view.columns.sum()) < 7
    spec = EncoderSpec(hidden=6, dim=4, activation="relu")
    encoder = Encoder(7, spec, generator=torch.Generator().manual_seed(0)).double()
    first, second = GCNConv(7, 6).double(), GCNConv(6, 4).double()
    with torch.no_grad():
        first.lin.weight.copy_(encoder.weights[0].T)
        second.lin.weight.copy_(encoder.weights[1].T)
    expected = second(first(x * view.columns, edge_index).relu(), edge_index)
    expected.square().sum().backward()
    for features in (x, SparseOperator(x.to_sparse_csr())):
        encoder.zero_grad()
        result = encoder(features, view)
        torch.testing.assert_close(result, expected)
        result.square().sum().backward()
        torch.testing.assert_close(encoder.weights[0].grad, first.lin.weight.grad.T)
        torch.testing.assert_close(encoder.weights[1].grad, second.lin.weight.grad.T)


def test_drop_rates_are_as_asked_and_a_seed_repeats_them():
    indptr, indices, _ = random_graph(500, 20_000)
    propagation = Propagation(indptr, indices)

    def draw(seed):
        return drawn(propagation, 4000, edge_drop=0.4, feature_mask=0.1, seed=seed)

    view = draw(0)
    edges = len(view.adjacency(0).matrix.values()) - 500
    assert edges / len(indices) == pytest.approx(0.6, abs=0.02)
    assert float(view.columns.float().mean()) == pytest.approx(0.9, abs=0.02)
    assert torch.equal(view.adjacency(0).matrix.col_indices(), draw(0).adjacency(0).matrix.col_indices())
    assert len(draw(1).adjacency(0).matrix.values()) != len(view.adjacency(0).matrix.values()) or not torch.equal(
        draw(1).adjacency(0).matrix.col_indices(), view.adjacency(0).matrix.col_indices()
    )


def test_undirected_drop_keeps_views_symmetric():
    indptr, indices, _ = random_graph(symmetric=True)
    view = drawn(Propagation(indptr, indices), 3, edge_drop=0.5, feature_mask=0.0, undirected=True)
    dense = view.adjacency(0).matrix.to_dense()
    torch.testing.assert_close(dense, dense.T)
    assert 40 < int((dense > 0).sum()) < len(indices) + 40


def test_a_graph_without_edges_propagates_each_node_to_itself():
    indptr, indices = torch.zeros(6, dtype=torch.long), torch.empty(0, dtype=torch.long)
    view = drawn(Propagation(indptr, indices), 2, edge_drop=0.4, feature_mask=0.0, undirected=True)
    x = torch.randn(5, 2)
    torch.testing.assert_close(view.adjacency(0) @ x, x)


def test_random_slopes_need_a_generator_and_vanish_in_eval_mode():
    indptr, indices, _ = random_graph()
    view = Propagation(indptr, indices).whole()
    encoder = Encoder(7, EncoderSpec(hidden=6, dim=4, activation="rrelu_random"), generator=torch.Generator())
    x = torch.randn(40, 7)
    with pytest.raises(ValueError, match="generator"):
        encoder(x, view)
    one, two = (encoder(x, view, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert not torch.equal(one, two)
    encoder.eval()
    assert torch.equal(encoder(x, view), encoder(x, view))


def test_rows_of_a_sparse_matrix_come_in_the_order_asked_for():
    dense = torch.randn(9, 6) * (torch.rand(9, 6) < 0.4)
    dense[3] = 0
    rows = torch.tensor([8, 3, 0, 3, 5])
    taken = rows_of(dense.to_sparse_csr(), rows)
    torch.testing.assert_close(taken.to_dense(), dense[rows])
    torch.testing.assert_close(transposed(taken).to_dense(), dense[rows].T)
    assert rows_of(dense.to_sparse_csr(), rows[:0]).shape == (0, 6)


def test_row_numbers_of_entries():
    matrix = csr(torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 2]), torch.ones(3), (3, 3))
    assert row_of_entry(matrix.crow_indices()).tolist() == [0, 0, 2]
