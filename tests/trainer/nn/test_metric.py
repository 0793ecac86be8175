"""The forms of the negative metric, and the row-wise walk for those that do not factor."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from trainer.loss import nml_loss_reference
from trainer.loss.nml import nml_terms
from trainer.loss.rowwise import rowwise_terms
from trainer.nn.metric import (
    ClosedForm,
    Cosine,
    LearnedCosine,
    PairMetric,
    PairMLP,
    build_metric,
    factors_in_pieces,
)
from trainer.spec.metric import MAX_METRIC_SCALE, MetricSpec


def views(n=30, d=6):
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return u, u + 0.3 * torch.randn(n, d, generator=generator, dtype=torch.float64)


def build(kind, **settings):
    spec = MetricSpec(kind=kind, hidden=16, **settings)
    return build_metric(6, spec, reg=3.0, generator=torch.Generator().manual_seed(1)).double()


class Factored(PairMetric):
    """A factored metric walked pair by pair, to compare the two walks."""

    def __init__(self, h, g):
        super().__init__()
        self.h, self.g = h, g

    def scores(self, z, positive, u, v, *, transposed):
        h, g = (self.g, self.h) if transposed else (self.h, self.g)
        rows = u[:, 0].round().long()  # u carries row numbers here
        return h[rows] @ g.T


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_rowwise_walk_equals_tiled_kernel(rows):
    u, v = views()
    h, g = (x.clone().requires_grad_() for x in views(d=4))
    p, q = (normalize(x).requires_grad_() for x in (u, v))
    number = torch.arange(30.0, dtype=torch.float64)[:, None]
    walked = rowwise_terms(p / 0.5, q, number, number, Factored(h, g), rows=rows)
    tiled = nml_terms(p / 0.5, q, h, g)
    for mine, theirs in zip(walked, tiled, strict=True):
        torch.testing.assert_close(mine, theirs)
    inputs = [p, q, h, g]
    for mine, theirs in zip(
        torch.autograd.grad(walked.nml + 2 * walked.kl, inputs), torch.autograd.grad(tiled.nml + 2 * tiled.kl, inputs),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", ["siamese_cos", "siamese_negcos", "two_tower"])
def test_learned_cosines_are_bounded_by_their_scale_and_have_the_right_sign(kind):
    metric = build(kind, scale=2.0)
    u, _ = views()
    h, g = metric(u, u)
    s = h @ g.T
    assert float(s.abs().max().detach()) <= 2.0 + 1e-9
    if kind == "siamese_cos":  # what the published code does: the positive pair gets the largest score
        torch.testing.assert_close(s.diagonal(), torch.full((30,), 2.0, dtype=torch.float64))
    if kind == "siamese_negcos":
        torch.testing.assert_close(s.diagonal(), torch.full((30,), -2.0, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["siamese_negcos", "two_tower"])
def test_factors_in_pieces_are_the_factors_with_the_same_gradients(kind):
    spec = MetricSpec(kind=kind, hidden=7)
    metric = build_metric(6, spec, reg=1.0, generator=torch.Generator().manual_seed(0)).double()
    u, v = (torch.randn(50, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    leaves = [u, v, *(parameter for parameter in metric.parameters())]
    at_once = metric(u, v)
    pieces = factors_in_pieces(metric, u, v, torch.Generator(), rows=8)
    found = []
    for h, g in (at_once, pieces):
        found.append(torch.autograd.grad((h @ g.T).exp().sum(), leaves))
    for mine, theirs in zip((*at_once, *found[0]), (*pieces, *found[1]), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_scale_is_learned_and_clamped():
    metric = build("siamese_negcos", scale=9.0)
    assert metric.scale.requires_grad
    with torch.no_grad():
        metric.scale += 5
    metric.after_step()
    assert float(metric.scale.detach()) == MAX_METRIC_SCALE
    assert not build("siamese_cos", learn_scale=False).scale.requires_grad


def test_unit_input_hides_norms_from_the_metric():
    u, v = views()
    unit, raw = build("two_tower", input="unit"), build("two_tower", input="raw")
    for metric in (unit, raw):
        torch.nn.init.ones_(metric.left.layers[0].bias)  # without a bias, scaling the input only scales the output
    torch.testing.assert_close(unit(u, v)[0], unit(3 * u, v)[0])
    assert not torch.allclose(raw(u, v)[0], raw(3 * u, v)[0])


@pytest.mark.parametrize("layers", [1, 2])
def test_pair_mlp_is_an_mlp_on_the_concatenated_pair_and_its_transpose_is_the_same_matrix(layers):
    metric = build("pair_mlp", hidden_layers=layers, activation="relu", input="raw")
    assert isinstance(metric, PairMLP)
    u, v = views(8)
    z = torch.zeros(8, 8, dtype=torch.float64)
    s = metric.scores(z, z[:, 0], u, v, transposed=False)
    first = torch.cat([metric.from_u.weight, metric.from_v.weight], 1)
    for i in range(8):
        for j in range(8):
            x = first @ torch.cat([u[i], v[j]]) + metric.from_u.bias + metric.from_v.bias
            for layer in metric.rest:
                x = layer(x.relu())
            torch.testing.assert_close(s[i, j], x[0])
    torch.testing.assert_close(metric.scores(z, z[:, 0], v, u, transposed=True), s.T)


def test_cosine_form_weights_near_pairs_less():
    u, v = views()
    h, g = Cosine()(u, v)
    torch.testing.assert_close(h @ g.T, -normalize(u) @ normalize(v).T)


def objective(m, z, positive, a):
    n = len(z)
    own = positive.exp()
    return -torch.log(own / (own + (n - 1) * (m * z.exp()).sum())) + a * (-math.log(n) - m.log().mean())


def test_closed_form_is_uniform_for_a_large_coefficient():
    z = torch.randn(5, 50, dtype=torch.float64)
    m = ClosedForm(1e6).scores(z, z[:, 0], z, z, transposed=False).exp()
    torch.testing.assert_close(m * 50, torch.ones_like(m), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_closed_form_is_not_beaten_by_mirror_descent_from_five_starts():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, generator=generator, dtype=torch.float64) * 2
    best = objective(ClosedForm(3.0).scores(z[None], z[None, 0], z, z, transposed=False).exp()[0], z, z[0], 3.0)
    for start in range(5):
        logits = torch.randn(40, generator=generator, dtype=torch.float64) * start / 2
        for _ in range(1000):
            logits.requires_grad_()
            m = logits.softmax(0)
            (gradient,) = torch.autograd.grad(objective(m, z, z[0], 3.0), logits)
            logits = (logits - 5.0 * gradient).detach()
        assert objective(logits.softmax(0), z, z[0], 3.0) >= best - 1e-7


def test_closed_form_refuses_a_degenerate_coefficient():
    with pytest.raises(ValueError, match="above 1"):
        ClosedForm(0.5)


@pytest.mark.slow
def test_a_trained_distance_separates_clusters_where_the_published_similarity_cannot():
    """Methods 2.4-A in small: only a distance can give close pairs small weights."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    label = torch.arange(80) % 4
    u = normalize(centres[label] + 0.3 * torch.randn(80, 6, generator=generator, dtype=torch.float64))
    v = normalize(u + 0.1 * torch.randn(80, 6, generator=generator, dtype=torch.float64))
    same = label[:, None] == label[None, :]
    weight_on_false = {}
    for kind in ("siamese_cos", "siamese_negcos"):
        metric = build(kind, learn_scale=False)
        optimiser = torch.optim.Adam(metric.parameters(), lr=1e-2)
        for _ in range(150):
            h, g = metric(u, v)
            loss = nml_loss_reference(u, v, h, g, tau=0.5, reg=1.0)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        h, g = metric(u, v)
        weight_on_false[kind] = float((80 * (h @ g.T).softmax(1))[same].mean().detach())
    assert weight_on_false["siamese_negcos"] < 0.6
    assert weight_on_false["siamese_cos"] > 0.9


def test_isinstance_of_learned_forms():
    assert isinstance(build("two_tower"), LearnedCosine)
    assert build("two_tower").right is not None
    assert build("siamese_cos").right is None
