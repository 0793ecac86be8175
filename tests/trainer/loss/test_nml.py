"""The tiled loss equals the printed formula, in value, gradient and memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from trainer.loss import nml_loss, nml_loss_reference
from trainer.loss.nml import nml_terms
from trainer.loss.tiled import TileMemory


def rows(n: int, d: int = 8, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """u, v, h, g with unit rows that need gradients; v correlates with u, as views do."""
    generator = torch.Generator().manual_seed(seed)
    u, v, h, g = (torch.randn(n, d, generator=generator, dtype=dtype) for _ in range(4))
    return [normalize(x).requires_grad_() for x in (u, u + 0.5 * v, h, g)]


def value_and_gradients(loss, inputs, kappa=-2.0, **settings):
    u, v, h, g = inputs
    value = loss(u, v, kappa * h, g, **settings)
    return value.detach(), torch.autograd.grad(value, inputs)


@pytest.mark.parametrize("n", [2, 3, 97, 1000])
@pytest.mark.parametrize("tile", [1, 64, 4096])
@pytest.mark.parametrize("tau, reg", [(0.5, 3.0), (0.1, 0.0)])
def test_tiled_loss_and_gradients_equal_the_dense_reference(n, tile, tau, reg):
    if n * n // tile**2 > 100_000:
        tile = 7  # a million 1×1 tiles would test patience only; 1000 is ragged in 7 too
    inputs = rows(n)
    value, gradients = value_and_gradients(nml_loss, inputs, tau=tau, reg=reg, tile=tile)
    expected, expected_gradients = value_and_gradients(nml_loss_reference, inputs, tau=tau, reg=reg)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    for name, mine, theirs in zip("uvhg", gradients, expected_gradients, strict=True):
        error = (mine - theirs).norm() / theirs.norm()
        assert error < 1e-9, f"gradient of {name} off by {error:.1e}"


def test_gradcheck_in_all_four_arguments():
    inputs = rows(5, 3)
    assert torch.autograd.gradcheck(lambda *x: nml_loss(*x, tau=0.4, reg=2.0, tile=2), inputs)


def test_float32_stays_close_to_float64_at_a_low_temperature():
    exact = value_and_gradients(nml_loss_reference, rows(300), tau=0.05, reg=1.0)
    narrow = value_and_gradients(nml_loss, rows(300, dtype=torch.float32), tau=0.05, reg=1.0, tile=64)
    # inputs are drawn in each dtype, so compare the float32 kernel on the float64 inputs rounded
    inputs = [x.detach().float().requires_grad_() for x in rows(300)]
    value, gradients = value_and_gradients(nml_loss, inputs, tau=0.05, reg=1.0, tile=64)
    assert torch.isfinite(narrow[0])
    torch.testing.assert_close(value.double(), exact[0], rtol=1e-5, atol=0)
    for mine, theirs in zip(gradients, exact[1], strict=True):
        assert (mine.double() - theirs).norm() / theirs.norm() < 1e-4


def saved_bytes(n: int, loss) -> int:
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    u, v, h, g = rows(n, 4, dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(u, v, h, g, tau=0.5, reg=1.0, tile=64)
    return sum(seen.values())


def test_bytes_saved_for_backward_grow_linearly():
    assert saved_bytes(4000, nml_loss) / saved_bytes(1000, nml_loss) == pytest.approx(4, rel=0.05)
    # the yardstick can tell: the dense form saves N×N
    assert saved_bytes(800, nml_loss_reference) / saved_bytes(200, nml_loss_reference) > 12


@pytest.mark.parametrize("megabytes", [0, 1, 64])
def test_kept_tiles_change_nothing_to_the_bit(megabytes):
    def steps(memory: TileMemory | None) -> list[Tensor]:
        u, v, h, g = rows(700, dtype=torch.float32)
        results = []
        for step in range(3):  # u and v stay, h moves: as in the metric steps of one epoch
            terms = nml_terms(u / 0.5, v, h * (1 + step), g, tile=256, memory=memory)
            results += [terms.nml.detach(), *torch.autograd.grad(terms.nml + 3 * terms.kl, [u, v, h, g])]
        return results

    for mine, theirs in zip(steps(TileMemory(megabytes)), steps(None), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("megabytes", [1, 2, 3])
def test_tiles_kept_by_batches_of_other_sizes_change_nothing(megabytes):
    memory = TileMemory(megabytes)
    for n in (700, 690, 650, 700, 600, 699, 620):  # with each size other tiles find room, some only in backward
        memory.forget_z()
        u, v, h, g = inputs = rows(n, dtype=torch.float32)
        kept, alone = (nml_terms(u / 0.5, v, h, g, tile=256, memory=room) for room in (memory, None))
        for mine, theirs in zip(*(torch.autograd.grad(terms.total(3), inputs) for terms in (kept, alone)), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("between", ["another forward", "new views"])
def test_a_late_backward_neither_uses_nor_leaves_tiles_of_other_views(between):
    memory = TileMemory(64)
    u, v, h, g = rows(50)
    first = nml_terms(u, v, h, g, memory=memory)
    if between == "another forward":
        nml_terms(u, v, -h, g, memory=memory)
    else:
        memory.forget_z()
    alone = nml_terms(u, v, h, g)
    assert torch.equal(torch.autograd.grad(first.nml, h)[0], torch.autograd.grad(alone.nml, h)[0])
    memory.forget_z()
    assert torch.equal(nml_terms(-u, v, h, g, memory=memory).nml, nml_terms(-u, v, h, g).nml)


def test_new_views_are_not_scored_with_similarities_of_a_late_backward():
    memory = TileMemory(64)
    u, v, h, g = rows(50)
    late = nml_terms(u, v, h, g, memory=memory).nml
    memory.forget_z()
    late.backward()
    assert torch.equal(nml_terms(-u, v, h, g, memory=memory).nml, nml_terms(-u, v, h, g).nml)


def test_constant_metric_is_the_ablation_without_one():
    u, v, _, _ = rows(60)
    same = torch.ones(60, 3, dtype=torch.float64)
    flat, uniform = nml_terms(u, v, same, same), nml_terms(u, v, None, None)
    torch.testing.assert_close(flat.nml, uniform.nml)
    assert abs(float(uniform.kl.detach())) < 1e-12
    for mine, theirs in zip(
        torch.autograd.grad(flat.nml, [u, v]), torch.autograd.grad(uniform.nml, [u, v]), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_nce_term_is_cross_entropy_of_the_positive():
    u, v, h, g = (x.detach() for x in rows(40))
    target = torch.arange(40)
    z = u @ v.T / 0.5
    expected = (torch.nn.functional.cross_entropy(z, target) + torch.nn.functional.cross_entropy(z.T, target)) / 2
    torch.testing.assert_close(nml_terms(u / 0.5, v, h, g, tile=16).nce, expected)


def test_refuses_what_would_overflow():
    u, v, h, g = rows(10, dtype=torch.float32)
    with pytest.raises(ValueError, match="raise the temperature"):
        nml_loss(u, v, h, g, tau=0.02, reg=1.0)
    with pytest.raises(ValueError, match="at least 2 nodes"):
        nml_loss(u[:1], v[:1], h[:1], g[:1], tau=0.5, reg=1.0)
    with pytest.raises(ValueError, match="h and g must be"):
        nml_loss(u, v, h[:5], g, tau=0.5, reg=1.0)
    with pytest.raises(ValueError, match="positive"):
        nml_loss(u, v, h, g, tau=0.0, reg=1.0)
