"""Label-free figures on embeddings whose shape is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.quality.geometry import geometry


def test_effective_rank_equals_its_definition_by_svd():
    z = torch.randn(300, 12, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.linspace(0.1, 2, 12)) + 5
    singular = np.linalg.svd(z.double().numpy() - z.double().numpy().mean(0), compute_uv=False)
    share = singular / singular.sum()
    assert geometry(z)["effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-4)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_effective_rank_and_dead_dimensions_of_a_low_rank_table(rank):
    z = torch.zeros(4_000, 16)
    z[:, :rank] = torch.randn(4_000, rank, generator=torch.Generator().manual_seed(0))
    figures = geometry(z + 3.7)  # constant columns are dead, whatever their value
    assert figures["effective_rank"] == pytest.approx(rank, rel=0.02)
    assert figures["dead_dimensions"] == pytest.approx((16 - rank) / 16)


def test_collapsed_embeddings_have_rank_zero():
    figures = geometry(torch.full((100, 7), 0.1))
    assert figures["effective_rank"] == 0
    assert figures["dead_dimensions"] == 1
    assert figures["uniformity"] == pytest.approx(0)
    assert geometry(torch.zeros(1, 3))["effective_rank"] == 0


def test_uniformity_and_norms_equal_their_definitions():
    z = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    u = torch.nn.functional.normalize(z, dim=1)
    terms = [torch.exp(-2 * (u[i] - u[j]).square().sum()) for i in range(60) for j in range(i)]
    figures = geometry(z)
    assert figures["uniformity"] == pytest.approx(torch.stack(terms).mean().log().item(), rel=1e-5)
    assert figures["mean_norm"] == pytest.approx(z.norm(dim=1).mean().item(), rel=1e-5)
    assert figures["std_norm"] == pytest.approx(z.norm(dim=1).std(correction=0).item(), rel=1e-5)
