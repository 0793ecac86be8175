"""The negative metric network M in its forms (methods 2.5): what weight a pair gets as a negative.

A form gives s_ij; the weight is m_ij = softmax_j(s_ij). Most forms factor, s_ij = h_i · g_j, and go through the tiled
kernel at the price of matrix products (`FactorMetric`). Two do not, and are walked row block by row block
(`PairMetric`, trainer.loss.rowwise): the paper's literal MLP on pairs, and the closed-form optimum without a network.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from trainer.nn.activation import Activation
from trainer.nn.mlp import Mlp, linear
from trainer.spec.metric import MAX_METRIC_SCALE, METRIC_PIECE, MetricSpec


class FactorMetric(nn.Module, ABC):
    """A metric with s_ij = h_i · g_j; `forward` returns h and g, or (None, None) for uniform weights."""

    @abstractmethod
    def forward(
        self, u: Tensor, v: Tensor, noise: torch.Generator | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """u, v: embeddings as the encoder gives them, [N, d]."""

    def after_step(self) -> None:
        """Bring parameters back into their range."""


class Uniform(FactorMetric):
    """m_ij = 1/N: the ablation without M."""

    def forward(self, u: Tensor, v: Tensor, noise: torch.Generator | None = None) -> tuple[None, None]:
        return None, None


class Cosine(FactorMetric):
    """m_ij ∝ exp(−c(u_i, v_j)), a constant for the encoder: the ablation «repl. cosine sim.» (normalised, detached)."""

    def forward(self, u: Tensor, v: Tensor, noise: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return -normalize(u.detach()), normalize(v.detach())


class LearnedCosine(FactorMetric):
    """s_ij = ±κ c(f(u_i), f'(v_j)): siamese (f = f') or two towers, similarity (+) or distance (−)."""

    def __init__(self, dim: int, spec: MetricSpec, *, generator: torch.Generator):
        super().__init__()
        self.sign = -1.0 if spec.kind == "siamese_negcos" else 1.0
        self.unit_input = spec.input == "unit"
        widths = [dim, *[spec.hidden] * spec.hidden_layers, spec.out_dim]
        self.left = Mlp(widths, spec.activation, generator=generator)
        self.right = Mlp(widths, spec.activation, generator=generator) if spec.kind == "two_tower" else None
        self.scale = nn.Parameter(torch.tensor(spec.scale), requires_grad=spec.learn_scale)

    def forward(self, u: Tensor, v: Tensor, noise: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        if self.unit_input:
            u, v = normalize(u), normalize(v)
        h = normalize(self.left(u, noise))
        g = normalize((self.right or self.left)(v, noise))
        return self.sign * self.scale * h, g

    def after_step(self) -> None:
        with torch.no_grad():
            self.scale.clamp_(0.0, MAX_METRIC_SCALE)


def factors_in_pieces(
    metric: FactorMetric, u: Tensor, v: Tensor, noise: torch.Generator, *, rows: int = METRIC_PIECE
) -> tuple[Tensor | None, Tensor | None]:
    """`metric(u, v, noise)` that keeps no activations beyond `rows` rows: backward computes them again, piece by piece.

    M is small beside N×N products, so a second pass costs little, and its activations would be some ten N × hidden
    tables. A metric with random slopes is called at once: its noise could not be drawn again.
    """
    if len(u) <= rows or not isinstance(metric, LearnedCosine) or metric.left.activation.is_random:
        factors: tuple[Tensor | None, Tensor | None] = metric(u, v, noise)
        return factors
    parts = [
        checkpoint(metric, u[start : start + rows], v[start : start + rows], use_reentrant=False)
        for start in range(0, len(u), rows)
    ]
    h, g = zip(*parts, strict=True)
    return torch.cat(h), torch.cat(g)


class PairMetric(nn.Module, ABC):
    """A metric that must see each pair: `scores` gives s for some rows against all columns."""

    bytes_per_pair = 4  # what a row block costs, so that the walker can choose its height

    @abstractmethod
    def scores(self, z: Tensor, positive: Tensor, u: Tensor, v: Tensor, *, transposed: bool) -> Tensor:
        """s of shape [t, N].  z: [t, N] logits u·v/τ of these rows; positive: [t]; u: [t, d], v: [N, d] embeddings.

        With `transposed`, rows are nodes of view 2 and columns those of view 1: s must be the transpose of the same
        matrix, not a second metric.
        """

    def after_step(self) -> None:
        """Bring parameters back into their range."""


class PairMLP(PairMetric):
    """s_ij = MLP(u_i, v_j) as the paper prints it; the first layer is split into W_u u_i + W_v v_j.

    Costs N² × hidden operations and t × N × hidden memory: for batches of a few hundred, or small graphs.
    """

    def __init__(self, dim: int, spec: MetricSpec, *, generator: torch.Generator):
        super().__init__()
        self.unit_input = spec.input == "unit"
        self.bytes_per_pair = 8 * spec.hidden * spec.hidden_layers
        self.from_u = linear(dim, spec.hidden, generator)
        self.from_v = linear(dim, spec.hidden, generator)
        self.activation = Activation("rrelu_mean" if spec.activation == "rrelu_random" else spec.activation)
        widths = [spec.hidden] * spec.hidden_layers + [1]
        self.rest = nn.ModuleList(linear(fan_in, fan_out, generator) for fan_in, fan_out in itertools.pairwise(widths))

    def scores(self, z: Tensor, positive: Tensor, u: Tensor, v: Tensor, *, transposed: bool) -> Tensor:
        if self.unit_input:
            u, v = normalize(u), normalize(v)
        left, right = (self.from_v, self.from_u) if transposed else (self.from_u, self.from_v)
        pair = left(u).unsqueeze(1) + right(v).unsqueeze(0)  # [t, N, hidden]
        for layer in self.rest:
            pair = layer(self.activation(pair))
        return pair.squeeze(-1)


class ClosedForm(PairMetric):
    """The weights that minimise L_i + a KL over free m_i (methods 2.4-B): N m_ij = 1 / (1 + (g_ij − ḡ_i)/a).

    g_ij = (N−1) e^{z_ij} / D_i with D_i = e^{z_ii} + (N−1) Σ_j m_ij e^{z_ij} and ḡ_i = Σ_j m_ij g_ij, iterated with
    renormalisation. No network, no gradient: a control that bounds what any M can reach. Well posed for a > 1.
    """

    PASSES = 20
    bytes_per_pair = 24

    def __init__(self, reg: float, factor: float | None = None):
        super().__init__()
        if reg <= 1:
            raise ValueError(f"closed_form needs a total KL coefficient above 1, got {reg:g}; raise method.reg")
        self.reg = reg
        self.factor = factor  # the loss's own, None for the number of columns less one

    @torch.no_grad()
    def scores(self, z: Tensor, positive: Tensor, u: Tensor, v: Tensor, *, transposed: bool) -> Tensor:
        """log m; each direction has its own optimum, so there is nothing to transpose."""
        n = z.shape[1]
        top = z.amax(1, keepdim=True)
        similarity, own = (z - top).exp(), (positive.unsqueeze(1) - top).exp()
        m = torch.full_like(z, 1 / n)
        factor = n - 1 if self.factor is None else self.factor
        for _ in range(self.PASSES):
            g = factor * similarity / (own + factor * (m * similarity).sum(1, keepdim=True))
            update = 1 / (1 + (g - (m * g).sum(1, keepdim=True)) / self.reg)
            update /= update.sum(1, keepdim=True)
            change = (update - m).abs().amax()
            m = update
            if float(change) * n < 1e-9:
                break
        return m.log()


Metric = FactorMetric | PairMetric


def build_metric(
    dim: int, spec: MetricSpec, *, reg: float, factor: float | None = None, generator: torch.Generator
) -> Metric:
    """The metric a spec asks for; `reg` (the total KL coefficient) and `factor` matter to closed_form only."""
    if spec.kind == "uniform":
        return Uniform()
    if spec.kind == "cosine":
        return Cosine()
    if spec.kind == "closed_form":
        return ClosedForm(reg, factor)
    if spec.kind == "pair_mlp":
        return PairMLP(dim, spec, generator=generator)
    return LearnedCosine(dim, spec, generator=generator)
