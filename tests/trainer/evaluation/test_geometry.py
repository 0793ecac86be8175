"""Label-free figures on embeddings whose shape is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.evaluation.geometry import geometry
from trainer.evaluation.rows import Rows


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


@pytest.mark.parametrize("piece", [1, 7, 100, 299, 300])
def test_figures_by_pieces_equal_those_of_the_whole_table(piece):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(300, 6, generator=generator) @ torch.diag(torch.tensor([3, 2, 1, 0.5, 1e-3, 0])) + 40
    z[150:, :4] += 5  # pieces differ in their mean
    expected = geometry(z)
    assert expected["dead_dimensions"] == pytest.approx(1 / 6)
    for name, value in geometry(Rows(z, torch.float32, piece)).items():
        assert value == pytest.approx(expected[name], rel=1e-9), name
