"""The tiled InfoNCE equals the printed formula for every kind of weight, in value, gradient and memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from trainer.loss import infonce_loss, infonce_reference
from trainer.loss.infonce import PairWeights, infonce_terms, intra_log_sums
from trainer.loss.tile_weights import ComputedWeights, RankedMask, SparseWeights
from trainer.loss.tiled import TileMemory
from trainer.nn import products

SIZES = [(2, 1), (97, 10), (200, 64), (50, 512)]


def views(n: int, d: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    u, noise = (torch.randn(n, d, generator=generator, dtype=dtype) for _ in range(2))
    return u.requires_grad_(), (u.detach() + 0.7 * noise).requires_grad_()


def given(kind: str, n: int, seed: int = 0):
    """Weights of a kind, and the same as a matrix."""
    generator = torch.Generator().manual_seed(seed)
    edges = (torch.rand(n, n, generator=generator) < 0.2).triu(1)
    some = torch.rand(n, n, generator=generator, dtype=torch.float64) + 0.1
    if kind == "uniform":
        return None, torch.ones(n, n, dtype=torch.float64)
    if kind == "edges left out":
        edge_index = (edges | edges.T).nonzero().T
        return SparseWeights(edge_index[:, torch.randperm(edge_index.shape[1])], n), (~(edges | edges.T)).double()
    if kind == "directed edges left out":
        return SparseWeights(edges.nonzero().T, n), (~edges).double()
    if kind == "sparse values":
        matrix = torch.where(edges, some, 0).to_sparse_csr()
        return SparseWeights.from_csr(matrix), torch.where(edges, some, 1)
    if kind == "ranked":
        order = torch.rand(n, n, generator=generator).argsort(1)[:, : n // 2]
        length = max(1, n // 5)
        return RankedMask(order, length), torch.ones(n, n).double().scatter_(1, order[:, :length], 0)
    both = some + some.T if kind == "computed, symmetric" else some
    return ComputedWeights(lambda i, j: both[i, j], symmetric=kind == "computed, symmetric"), both


KINDS = (
    "uniform", "edges left out", "directed edges left out", "sparse values", "ranked", "computed",
    "computed, symmetric",
)  # fmt: skip


def with_diagonal(matrix: Tensor, value: float) -> Tensor:
    return matrix.clone().fill_diagonal_(value)


def assert_equal_to_reference(u, v, weights, back, dense, dense_back, tolerance, **settings):
    """Value and gradients of an uneven sum of both directions' losses."""
    terms = infonce_terms(u, v, tau=0.4, weights=weights, back=back, **settings)
    mine = [terms.log_den_u - terms.positive, terms.log_den_v - terms.positive]
    x, y = u.detach().double().requires_grad_(), v.detach().double().requires_grad_()
    theirs = infonce_reference(x, y, tau=0.4, weights=dense, back=dense_back)
    slope = torch.linspace(0.5, 2, len(u), dtype=torch.float64)
    for a, b in zip(mine, theirs, strict=True):
        assert float((a.double() - b).detach().abs().max()) <= tolerance * max(1.0, float(b.detach().abs().max()))
    got = torch.autograd.grad(slope.to(u) @ mine[0] - 2 * slope.to(u) @ mine[1], [u, v])
    expected = torch.autograd.grad(slope @ theirs[0] - 2 * slope @ theirs[1], [x, y])
    for name, a, b in zip("uv", got, expected, strict=True):
        error = (a.double() - b).norm() / b.norm()
        assert error <= tolerance, f"gradient of {name} off by {error:.1e}"


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n, tile", SIZES)
def test_each_kind_of_weight_equals_the_dense_reference(n, tile, kind, dtype, tolerance):
    inter, inter_dense = given(kind, n)
    intra, intra_dense = given(kind, n, seed=1)
    weights = PairWeights(inter, intra, inter_self=2.0, intra_self=0.5)
    dense = with_diagonal(inter_dense, 2.0), with_diagonal(intra_dense, 0.5)
    assert_equal_to_reference(*views(n, dtype=dtype), weights, None, dense, None, tolerance, tile=tile)


@pytest.mark.parametrize("n, tile", SIZES)
def test_each_direction_has_weights_of_its_own(n, tile):
    (a, a_dense), (b, b_dense), (c, c_dense) = (given(kind, n, k) for k, kind in enumerate(KINDS[2:5]))
    d, d_dense = given("edges left out", n, 7)
    dense = with_diagonal(a_dense, 1), with_diagonal(b_dense, 0)
    dense_back = with_diagonal(c_dense, 2), with_diagonal(d_dense, 1)
    assert_equal_to_reference(
        *views(n), PairWeights(a, b), PairWeights(c, d, 2, 1), dense, dense_back, 1e-10, tile=tile
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["uniform", "computed, symmetric"])
def test_directions_that_differ_on_the_diagonal_only(kind):
    weights, dense = given(kind, 30)
    assert_equal_to_reference(
        *views(30), PairWeights(weights, weights), PairWeights(weights, weights, 2, 1),
        (with_diagonal(dense, 1), with_diagonal(dense, 0)), (with_diagonal(dense, 2), with_diagonal(dense, 1)),
        1e-10, tile=8,
    )  # fmt: skip


@pytest.mark.parametrize("n, tile", SIZES)
def test_grace_is_the_special_case_without_weights(n, tile):
    u, v = views(n)
    tau = 0.3
    mine = infonce_loss(u, v, tau=tau, tile=tile)
    a, b = normalize(u), normalize(v)
    off = torch.full((n, n), 0.0, dtype=torch.float64).fill_diagonal_(-torch.inf)
    target = torch.arange(n)
    forth, back = torch.cat([a @ b.T / tau, a @ a.T / tau + off], 1), torch.cat([b @ a.T / tau, b @ b.T / tau + off], 1)
    expected = sum(torch.nn.functional.cross_entropy(logits, target) for logits in (forth, back)) / 2
    torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)
    for got, wanted in zip(*(torch.autograd.grad(x, [u, v]) for x in (mine, expected)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


def test_masks_of_length_nought_and_weights_of_one_are_grace():
    u, v = views(40)
    mask, ones = RankedMask(torch.randint(40, (40, 5)), 0), ComputedWeights(lambda i, j: torch.ones(40, 40)[i, j])
    grace = infonce_loss(u, v, tau=0.5, tile=16)
    for weights in (mask, ones):
        torch.testing.assert_close(
            infonce_loss(u, v, tau=0.5, tile=16, weights=PairWeights(weights, weights)), grace, rtol=1e-12, atol=0
        )
    mask.length = 5
    assert infonce_loss(u, v, tau=0.5, weights=PairWeights(mask, mask)) < grace


def test_gradcheck_with_uneven_weights():
    u, v = views(5, 3)
    weights = PairWeights(given("computed", 5)[0], given("sparse values", 5)[0])
    assert torch.autograd.gradcheck(lambda *x: infonce_terms(*x, tau=0.4, weights=weights, tile=2)[:2], (u, v))


def test_only_the_gradients_asked_for_are_computed():
    u, v = views(20)
    alone = infonce_loss(u, v.detach(), tau=0.5, tile=8)
    torch.testing.assert_close(
        torch.autograd.grad(alone, u)[0], torch.autograd.grad(infonce_loss(u, v, tau=0.5, tile=8), u)[0]
    )
    assert not infonce_loss(u.detach(), v.detach(), tau=0.5).requires_grad


def test_without_negatives_of_the_same_view_it_is_plain_cross_entropy():
    u, v = views(33)
    terms = infonce_terms(u, v, tau=0.5, intra=False, tile=8)
    z = normalize(u) @ normalize(v).T / 0.5
    torch.testing.assert_close(terms.log_den_u, z.logsumexp(1))
    torch.testing.assert_close(terms.log_den_v, z.logsumexp(0))
    torch.testing.assert_close(terms.positive, z.diagonal())


@pytest.mark.parametrize("kind", ["uniform", "computed"])
@pytest.mark.parametrize("own", [0.0, 1.0])
def test_sums_of_a_single_view(kind, own):
    z, _ = views(45)
    weights, dense = given(kind, 45)
    mine = intra_log_sums(z, tau=0.4, weights=weights, self_weight=own, tile=16)
    unit = normalize(z)
    expected = (with_diagonal(dense, own) * (unit @ unit.T / 0.4).exp()).sum(1).log()
    torch.testing.assert_close(mine, expected)
    slope = torch.arange(45.0, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad(slope @ x, z) for x in (mine, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_an_anchor_whose_negatives_are_all_left_out_has_no_loss_and_no_gradient():
    u, v = views(12)
    nothing = ComputedWeights(lambda i, j: torch.zeros(i.stop - i.start, j.stop - j.start), symmetric=True)
    loss = infonce_loss(u, v, tau=0.5, tile=5, weights=PairWeights(nothing, nothing))
    assert abs(loss.item()) < 1e-12
    assert all(float(grad.abs().max()) < 1e-12 for grad in torch.autograd.grad(loss, [u, v]))
    empty = infonce_terms(u, v, tau=0.5, tile=5, weights=PairWeights(nothing, nothing, inter_self=0)).log_den_u
    assert bool((empty == -torch.inf).all())
    assert bool((torch.autograd.grad(empty.exp().sum(), u)[0] == 0).all())


def saved_bytes(n: int, loss) -> int:
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    u, v = views(n, 4, torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(u, v)
    return sum(seen.values())


def test_bytes_saved_for_backward_grow_linearly():
    def tiled(u, v):
        rebuilt = ComputedWeights(lambda i, j: 1 + torch.outer(u.detach()[i, 0], v.detach()[j, 0]).abs())
        return infonce_loss(u, v, tau=0.5, tile=64, weights=PairWeights(rebuilt, rebuilt))

    def dense(u, v):
        ones = torch.ones(len(u), len(u))
        return sum(x.mean() for x in infonce_reference(u, v, tau=0.5, weights=(ones, ones)))

    assert saved_bytes(2000, tiled) / saved_bytes(500, tiled) == pytest.approx(4, rel=0.05)
    assert saved_bytes(800, dense) / saved_bytes(200, dense) > 12  # the yardstick can tell


@pytest.mark.parametrize("symmetric, tiles", [(False, 25), (True, 15)])
def test_weights_are_asked_for_tile_by_tile_and_once_a_sweep_for_all_kinds_of_pairs(symmetric, tiles):
    asked = []

    def weigh(rows: slice, columns: slice) -> Tensor:
        asked.append((rows.stop - rows.start, columns.stop - columns.start))
        return torch.ones(asked[-1])

    u, v = views(70)
    weights = ComputedWeights(weigh, symmetric=symmetric)
    loss = infonce_loss(u, v, tau=0.5, tile=16, weights=PairWeights(weights, weights))
    assert len(asked) == tiles
    loss.backward()
    assert len(asked) == 2 * tiles
    assert max(max(shape) for shape in asked) == 16


@pytest.mark.parametrize("megabytes", [0, 1, 64])
def test_kept_tiles_change_nothing_to_the_bit(megabytes):
    def steps(memory: TileMemory | None) -> list[Tensor]:
        results = []
        for n in (400, 390, 400):  # batches change size, and with it the room that is left
            u, v = views(n, dtype=torch.float32)
            loss = infonce_loss(u, v, tau=0.5, tile=128, memory=memory)
            results += [loss.detach(), *torch.autograd.grad(loss, [u, v])]
        return results

    for mine, theirs in zip(steps(TileMemory(megabytes)), steps(None), strict=True):
        assert torch.equal(mine, theirs)


def test_a_late_backward_does_not_use_tiles_of_other_views():
    memory = TileMemory(64)
    u, v = views(50)
    late = infonce_loss(u, v, tau=0.5, memory=memory)
    infonce_loss(-u, v, tau=0.5, memory=memory)
    alone = infonce_loss(u, v, tau=0.5)
    assert torch.equal(torch.autograd.grad(late, u)[0], torch.autograd.grad(alone, u)[0])


@pytest.mark.parametrize("backend", products.BACKENDS)
def test_every_backend_of_products_serves(backend):
    if not products.available(backend):
        pytest.skip(f"{backend} is not available here")
    u, v = views(300, 16, torch.float32)
    with products.using(backend):
        loss = infonce_loss(u, v, tau=0.5, tile=128)
        loss.backward()
    expected = torch.autograd.grad(infonce_loss(u, v, tau=0.5), u)[0]
    assert (u.grad - expected).norm() / expected.norm() < (0.02 if backend == "bfloat16" else 1e-5)


def test_refuses_what_it_cannot_compute():
    u, v = views(10, dtype=torch.float32)
    with pytest.raises(ValueError, match="equal shapes"):
        infonce_loss(u, v[:5], tau=0.5)
    with pytest.raises(ValueError, match=r"tau is 0\.02"):
        infonce_loss(u, v, tau=0.02)
    with pytest.raises(ValueError, match="tau is 0"):
        infonce_loss(u, v, tau=0.0)
    with pytest.raises(ValueError, match="not supported"):
        infonce_loss(u.half(), v.half(), tau=0.5)
    with pytest.raises(ValueError, match="tile is 0"):
        infonce_loss(u, v, tau=0.5, tile=0)
