"""NML-GCL (methods section 2): InfoNCE with negatives weighted by a learned metric, trained in turns with the encoder.

Algorithm 1, per epoch: draw two views, encode them once, take T_M metric steps on the detached embeddings (so their
similarities never change and are kept where there is room), then one encoder step on the same embeddings with M frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from trainer.config import TrainSpec
from trainer.methods.interface import Loss, Method
from trainer.nn.encoder import Encoder
from trainer.nn.inputs import Inputs
from trainer.nn.metric import FactorMetric, build_metric
from trainer.nn.rowwise import contrast_rowwise
from trainer.nn.tiled import Terms, TileMemory, contrast
from trainer.nn.views import View, draw_view
from trainer.quality.weights import weight_report
from trainer.seeds import generator

DIAGNOSED_ANCHORS = 512


@dataclass
class EncodedViews:
    """Two views and, unless they are to be re-encoded before every step, their embeddings with the graph attached."""

    views: tuple[View, View]
    noise: torch.Generator
    u: Tensor | None = None
    v: Tensor | None = None


class NegativeMetricLearning(Method):
    """Encoder E and metric M with an Adam each; a frozen part gets no gradient, hence no decay or momentum."""

    def __init__(self, spec: TrainSpec, inputs: Inputs):
        super().__init__(spec, inputs)
        seed = spec.run.seed
        self.reg = spec.objective.reg.total(inputs.num_nodes)
        self.encoder = Encoder(inputs.num_features, spec.encoder, generator=generator(seed, "encoder"))
        self.metric = build_metric(spec.encoder.dim, spec.metric, reg=self.reg, generator=generator(seed, "metric"))
        self.to(device=inputs.device, dtype=inputs.dtype)
        self.optimisers = {"encoder": _adam(self.encoder, spec.optimiser.lr, spec.optimiser.weight_decay)}
        # M is frozen except in its own steps: the encoder's gradients pass through it without reaching its parameters.
        self._metric_parameters = [parameter for parameter in self.metric.parameters() if parameter.requires_grad]
        if self._metric_parameters:
            metric_lr = spec.optimiser.metric_lr or spec.optimiser.lr
            self.optimisers["metric"] = _adam(self.metric, metric_lr, spec.optimiser.metric_weight_decay)
            self.metric.requires_grad_(False)
        self._whole = View(inputs.propagation.whole())
        self._memory = TileMemory(spec.sampling.keep_mb)
        self._reencodes = spec.objective.inner_recompute and self.encoder.is_random

    def views(self, epoch: int) -> EncodedViews:
        self.train()
        draws = generator(self.spec.run.seed, "views", epoch)
        augment = self.spec.augment
        first, second = (
            draw_view(
                self.inputs.propagation, self.inputs.num_features, edge_drop=edge_drop, feature_mask=feature_mask,
                generator=draws, undirected=augment.undirected,
            )
            for edge_drop, feature_mask in zip(augment.edge_drop, augment.feature_mask, strict=True)
        )  # fmt: skip
        drawn = EncodedViews((first, second), generator(self.spec.run.seed, "noise", epoch, device=self.inputs.device))
        if not self._reencodes:
            drawn.u, drawn.v = self._encode(drawn)
        self._memory.forget_z()
        return drawn

    def inner(self, views: EncodedViews, epoch: int) -> None:
        optimiser = self.optimisers.get("metric")
        if optimiser is None:
            return
        for _ in range(self.spec.objective.inner_steps):
            with torch.no_grad():
                u, v = self._embeddings(views)
            with _learning(self._metric_parameters):
                terms = self._contrast(u.detach(), v.detach(), views.noise)
                optimiser.zero_grad(set_to_none=True)
                (terms.nml + self.reg * terms.kl).backward()
            optimiser.step()
            self.metric.after_step()

    def loss(self, views: EncodedViews) -> Loss:
        u, v = self._embeddings(views)
        terms = self._contrast(u, v, views.noise, detach_metric=self.spec.objective.detach_metric, with_nce=True)
        nml, kl, nce = (float(term.detach()) for term in terms)
        views.u, views.v = u.detach(), v.detach()  # for diagnose; backward still holds the graph
        log_n = math.log(self.inputs.num_nodes)
        total = terms.nml + self.reg * terms.kl
        metrics = {
            "loss": float(total.detach()), "nml": nml, "kl": kl, "reg": self.reg * kl, "i_nml": log_n - nml,
            "i_nce": log_n - nce,
        }  # fmt: skip
        scale = getattr(self.metric, "scale", None)
        if scale is not None:
            metrics["metric_scale"] = float(scale.detach())
        return Loss(total, metrics)

    @torch.no_grad()
    def diagnose(self, views: EncodedViews) -> dict[str, float]:
        """Mean N·m on self, false and true negatives for a fixed sample of anchors (methods 5.5)."""
        assert views.u is not None
        assert views.v is not None
        n = self.inputs.num_nodes
        anchors = torch.randperm(n, generator=generator(self.spec.run.seed, "anchors"))
        u, v = normalize(views.u), normalize(views.v)
        self.metric.eval()
        if isinstance(self.metric, FactorMetric):
            anchors = anchors[:DIAGNOSED_ANCHORS].to(self.inputs.device)
            cosine = u[anchors] @ v.T
            h, g = self.metric(views.u, views.v)
            scores = torch.zeros_like(cosine) if h is None else h[anchors] @ g.T
        else:
            most = max(1, 2**28 // (n * self.metric.bytes_per_pair))
            anchors = anchors[: min(DIAGNOSED_ANCHORS, most)].to(self.inputs.device)
            cosine = u[anchors] @ v.T
            z = cosine / self.spec.objective.temperature
            positive = z.gather(1, anchors[:, None]).squeeze(1)
            scores = self.metric.scores(z, positive, views.u[anchors], views.v, transposed=False)
        self.metric.train()
        return weight_report(torch.softmax(scores, 1) * n, cosine, anchors, self.inputs.labels)

    @torch.no_grad()
    def embed(self) -> Tensor:
        self.eval()
        embeddings: Tensor = self.encoder(self.inputs.x, self._whole)
        return embeddings

    def _encode(self, views: EncodedViews) -> tuple[Tensor, Tensor]:
        first, second = views.views
        return self.encoder(self.inputs.x, first, views.noise), self.encoder(self.inputs.x, second, views.noise)

    def _embeddings(self, views: EncodedViews) -> tuple[Tensor, Tensor]:
        if self._reencodes:
            self._memory.forget_z()
            return self._encode(views)
        assert views.u is not None
        assert views.v is not None
        return views.u, views.v

    def _contrast(
        self, u: Tensor, v: Tensor, noise: torch.Generator, *, detach_metric: bool = False, with_nce: bool = False
    ) -> Terms:
        p, q = normalize(u) / self.spec.objective.temperature, normalize(v)
        seen_u, seen_v = (u.detach(), v.detach()) if detach_metric else (u, v)
        if isinstance(self.metric, FactorMetric):
            h, g = self.metric(seen_u, seen_v, noise)
            return contrast(p, q, h, g, tile=self.spec.sampling.tile, memory=self._memory, with_nce=with_nce)
        return contrast_rowwise(p, q, seen_u, seen_v, self.metric)


def _adam(module: nn.Module, lr: float, weight_decay: float) -> torch.optim.Adam:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


@contextmanager
def _learning(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Let gradients reach parameters that are frozen otherwise."""
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
