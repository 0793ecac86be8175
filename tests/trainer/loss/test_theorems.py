"""What the paper claims of I_NML and of false negatives, as far as it holds (methods 2.4-E).

    I_NCE = log N − mean_i log( Σ_j s_ij / s_ii )
    I_NML = log N − mean_i log( (s_ii + (N−1) Σ_j m_ij s_ij) / s_ii )

For free weights m_i on the simplex, the best put everything on the least similar node, and (N−1) min_j s_ij is at most
Σ_{j≠i} s_ij: so I_NML ≥ I_NCE, always. It does not hold for every M: uniform weights, and so a strong KL, fall below.
And I_NML is no lower bound of the mutual information: it is positive for views that have none.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.learning.learner import Learner
from trainer.loss.rowwise import rowwise_terms
from trainer.nn.metric import ClosedForm, PairMetric
from trainer.presets import merged, preset_document

CASES = [(n, tau, seed) for n in (2, 3, 10, 60) for tau in (0.1, 0.5, 1.0) for seed in (0, 1)]


class Vertex(PairMetric):
    """All weight of an anchor on the node that is least similar to it."""

    def scores(self, z: Tensor, positive: Tensor, u: Tensor, v: Tensor, *, transposed: bool) -> Tensor:
        return torch.zeros_like(z).scatter_(1, z.argmin(1, keepdim=True), 60.0)


class Given(PairMetric):
    """Weights that a test hands in, of both directions."""

    def __init__(self, logs: Tensor):
        super().__init__()
        self.logs = logs

    def scores(self, z: Tensor, positive: Tensor, u: Tensor, v: Tensor, *, transposed: bool) -> Tensor:
        return self.logs


def two_views(n: int, seed: int, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    u, other = (torch.randn(n, 6, dtype=torch.float64, generator=draws) for _ in range(2))
    return normalize(u), normalize(u + noise * other)


def informations(u: Tensor, v: Tensor, tau: float, metric: PairMetric) -> tuple[float, float]:
    """I_NML and I_NCE, from the terms that training reports."""
    terms = rowwise_terms(u / tau, v, u, v, metric)
    return math.log(len(u)) - float(terms.nml), math.log(len(u)) - float(terms.nce)


@pytest.mark.parametrize("n, tau, seed", CASES)
def test_with_the_best_free_weights_i_nml_is_at_least_i_nce(n, tau, seed):
    u, v = two_views(n, seed)
    i_nml, i_nce = informations(u, v, tau, Vertex())
    assert i_nml >= i_nce - 1e-12
    if n > 2:
        assert i_nml > i_nce


@pytest.mark.parametrize("n, tau", [(3, 0.5), (10, 0.2), (40, 1.0)])
def test_no_other_free_weights_do_better(n, tau):
    """Against random points of the simplex, near its corners and within."""
    u, v = two_views(n, 5)
    best, _ = informations(u, v, tau, Vertex())
    draws = torch.Generator().manual_seed(2)
    for sharpness in (0.1, 1.0, 10.0, 40.0):
        logs = sharpness * torch.randn(n, n, dtype=torch.float64, generator=draws)
        assert informations(u, v, tau, Given(logs))[0] <= best + 1e-12


@pytest.mark.parametrize("n, tau, seed", [case for case in CASES if case[0] > 2])
def test_weights_that_spare_only_the_anchor_itself_give_i_nce(n, tau, seed):
    u, v = two_views(n, seed)
    logs = torch.zeros(n, n, dtype=torch.float64).fill_diagonal_(-80)
    i_nml, i_nce = informations(u, v, tau, Given(logs))
    assert i_nml == pytest.approx(i_nce, abs=1e-12)


def test_it_does_not_hold_for_uniform_weights_nor_under_a_strong_kl():
    """The regularised optimum rises towards I_NCE, and past it, as the coefficient falls."""
    u, v = two_views(60, 0)
    uniform, i_nce = informations(u, v, 0.5, Given(torch.zeros(60, 60, dtype=torch.float64)))
    assert uniform < i_nce
    found = [informations(u, v, 0.5, ClosedForm(reg))[0] for reg in (1e4, 100.0, 10.0, 3.0, 1.1)]
    assert found == sorted(found)
    assert found[0] < i_nce < found[-1]
    assert found[0] == pytest.approx(uniform, abs=1e-3)


def test_it_is_no_lower_bound_of_the_mutual_information():
    """Two views drawn independently share nothing."""
    estimates = []
    for seed in range(20):
        draws = torch.Generator().manual_seed(seed)
        u, v = (normalize(torch.randn(60, 6, dtype=torch.float64, generator=draws)) for _ in range(2))
        estimates.append(informations(u, v, 0.5, Vertex()))
    i_nml, i_nce = (sum(values) / len(values) for values in zip(*estimates, strict=True))
    assert i_nml > 0.5
    assert i_nce < 0.05


def mean_distances(z: Tensor, y: Tensor) -> tuple[float, float]:
    """Means of 1 − cos over pairs of one class, and of two."""
    distance = 1 - normalize(z.double()) @ normalize(z.double()).T
    same, others = y[:, None] == y, ~torch.eye(len(y), dtype=torch.bool)
    return float(distance[same & others].mean()), float(distance[~same].mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_after_training_false_negatives_are_closer_than_true_ones(seed):
    """On a planted graph, and clearer than in the features and from the first weights."""
    document = merged(preset_document("nml", "synthetic"), {
        "data": {"name": "synthetic", "synthetic": {"nodes": 240, "classes": 3, "features": 60, "active_features": 6}},
        "encoder": {"hidden": 32, "dim": 32}, "method": {"metric": {"hidden": 32}, "inner_steps": 3},
        "optimiser": {"epochs": 40, "lr": 0.005}, "run": {"seed": seed},
    })  # fmt: skip
    spec = parse_spec(document)
    graph = load(spec.data)
    learner = Learner(spec, graph)
    ratios = []
    for z in (graph.x.to_dense(), learner.encoding.embed()):
        false, true = mean_distances(z, graph.y)
        ratios.append(false / true)
    for epoch in range(1, 41):
        for step in learner.steps_of(epoch):
            learner.step(step)
    false, true = mean_distances(learner.encoding.embed(), graph.y)
    assert false < true
    assert false / true < min(ratios), (false / true, ratios)
