"""NML-GCL (methods section 2): InfoNCE with negatives weighted by a learned metric, trained in turns with the encoder.

Algorithm 1, per step: draw two views, encode them once, take T_M metric steps on the detached embeddings (so their
similarities never change and are kept where there is room), then one encoder step on the same embeddings with M frozen.
A step sees the whole graph, or a batch of it (trainer.encoding); its anchors meet each other or a bank (`negatives`).
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
from trainer.data.graph import Graph
from trainer.data.seeds import generator
from trainer.distributed.team import Team
from trainer.encoding import build_encoding
from trainer.encoding.pair import Pair
from trainer.errors import InvalidInput
from trainer.loss.nml import Terms, bank_terms, nml_terms
from trainer.loss.rowwise import rowwise_terms
from trainer.loss.tiled import TileMemory
from trainer.methods.bank import Bank
from trainer.methods.interface import Loss, Method
from trainer.methods.weights import weight_report
from trainer.nn.encoder import Encoder
from trainer.nn.metric import FactorMetric, build_metric, factors_in_pieces
from trainer.spec.training import DEFAULT_KEEP_MB

DIAGNOSED_ANCHORS = 512


@dataclass
class EncodedViews:
    """A pair of views with the embeddings that the steps on it share."""

    pair: Pair
    u: Tensor
    v: Tensor
    columns: int  # negatives each anchor meets
    bank_weights: tuple[Tensor | None, Tensor | None] = (None, None)


class NegativeMetricLearning(Method):
    """Encoder E and metric M with an Adam each; a frozen part gets no gradient, hence no decay or momentum."""

    def __init__(self, spec: TrainSpec, graph: Graph, device: torch.device, team: Team):
        super().__init__(spec, graph, team)
        seed, sampling = spec.run.seed, spec.sampling
        dtype = getattr(torch, spec.run.dtype)
        n = graph.num_nodes
        scoped = n if sampling.batch_size is None else min(n, sampling.batch_size * team.size)
        counted = n if sampling.scale == "graph" or sampling.negatives != "batch" else scoped
        self.factor, self.reg = counted - 1, spec.objective.reg.total(counted)
        self.encoder = Encoder(graph.num_features, spec.encoder, generator=generator(seed, "encoder"))
        self.metric = build_metric(
            spec.encoder.dim, spec.metric, reg=self.reg, factor=self.factor, generator=generator(seed, "metric")
        )
        if not isinstance(self.metric, FactorMetric) and (team.size > 1 or sampling.negatives == "bank"):
            raise InvalidInput(
                f"metric.kind {spec.metric.kind} looks at single pairs and cannot use a bank or several workers. "
                "Choose siamese_negcos, or sampling.negatives=batch with run.workers=1."
            )
        self.bank = Bank(n, spec.encoder.dim) if sampling.negatives == "bank" else None
        self.to(device=device, dtype=dtype)
        self.encoding = build_encoding(spec, graph, self.encoder, team, device, dtype)
        self.steps = self.encoding.steps
        share = 1 / self.steps if spec.optimiser.lr_scaling == "linear" else 1.0
        self.optimisers = {"encoder": _adam(self.encoder, share * spec.optimiser.lr, spec.optimiser.weight_decay)}
        # M is frozen except in its own steps: the encoder's gradients pass through it without reaching its parameters.
        self._metric_parameters = [parameter for parameter in self.metric.parameters() if parameter.requires_grad]
        if self._metric_parameters:
            metric_lr = share * (spec.optimiser.metric_lr or spec.optimiser.lr)
            self.optimisers["metric"] = _adam(self.metric, metric_lr, spec.optimiser.metric_weight_decay)
            self.metric.requires_grad_(False)
        self._memory = TileMemory(DEFAULT_KEEP_MB if sampling.keep_mb is None else sampling.keep_mb)
        self._reencodes = spec.objective.inner_recompute and self.encoder.is_random

    def views(self, epoch: int, start: int = 0) -> Iterator[EncodedViews]:
        self.train()
        if self.bank is not None and not self.bank.is_full:
            self._fill(self.bank)
        for pair in self.encoding.pairs(epoch, start):
            u, v = pair.encode()
            encoded = EncodedViews(pair, u, v, self._all_rows(u))
            if self.bank is not None:
                assert isinstance(self.metric, FactorMetric)
                self.bank.step += 1
                self._refresh(self.bank, pair.nodes, u, v)
                encoded.columns = len(self.bank.u)
                encoded.bank_weights = self.bank.weigh(self.metric, pair.noise)
            self._memory.forget_z()
            yield encoded

    def inner(self, views: EncodedViews) -> None:
        optimiser = self.optimisers.get("metric")
        if optimiser is None:
            return
        for step in range(self.spec.objective.inner_steps):
            if self._reencodes and step:
                with torch.no_grad():
                    self._encode_again(views)
            with _learning(self._metric_parameters):
                terms = self._terms(views, views.u.detach(), views.v.detach())
                optimiser.zero_grad(set_to_none=True)
                terms.total(self.reg).backward()
                self.team.sum_gradients(self._metric_parameters)
            optimiser.step()
            self.metric.after_step()

    def loss(self, views: EncodedViews) -> Loss:
        if self._reencodes and self.spec.objective.inner_steps:
            self._encode_again(views)
        detach = self.spec.objective.detach_metric
        terms = self._terms(views, views.u, views.v, detach_metric=detach, with_nce=True)
        nml, kl, nce = self.team.total(torch.stack([term.detach() for term in terms])).tolist()
        metrics = {
            "loss": nml + self.reg * kl, "nml": nml, "kl": kl, "reg": self.reg * kl,
            "i_nml": math.log(self.factor + 1) - nml, "i_nce": math.log(views.columns) - nce,
        }  # fmt: skip
        scale = getattr(self.metric, "scale", None)
        if scale is not None:
            metrics["metric_scale"] = float(scale.detach())
        if self.bank is not None:
            metrics["bank_staleness"] = self.bank.staleness()
        return Loss(terms.total(self.reg), metrics)

    def backward(self, loss: Loss, views: EncodedViews) -> None:
        views.pair.backward(loss.total)
        self.team.sum_gradients(self.encoder.parameters())

    @torch.no_grad()
    def diagnose(self, views: EncodedViews) -> dict[str, float]:
        """Mean weight, in units of the uniform one, on self, false and true negatives (methods 5.5).

        For a fixed sample of anchors against the nodes this worker holds; in scope `bank`, against the bank.
        """
        nodes, u, v = views.pair.nodes, views.u.detach(), views.v.detach()
        chosen = torch.randperm(len(nodes), generator=generator(self.spec.run.seed, "anchors"))
        labels = self.graph.y
        self.metric.eval()
        if isinstance(self.metric, FactorMetric):
            rows = chosen[:DIAGNOSED_ANCHORS].to(u.device)
            if self.bank is None:
                others, own = normalize(v), rows
                h, g = self.metric(u, v)
            else:
                others, own = self.bank.v, nodes.to(u.device)[rows]
                h, _ = self.metric(u, v)
                g = views.bank_weights[1]
            cosine = normalize(u[rows]) @ others.T
            scores = torch.zeros_like(cosine) if h is None or g is None else h[rows] @ g.T
        else:
            most = max(1, 2**28 // (len(v) * self.metric.bytes_per_pair))
            own = rows = chosen[: min(DIAGNOSED_ANCHORS, most)].to(u.device)
            cosine = normalize(u[rows]) @ normalize(v).T
            z = cosine / self.spec.objective.temperature
            positive = z.gather(1, rows[:, None]).squeeze(1)
            scores = self.metric.scores(z, positive, u[rows], v, transposed=False)
        self.metric.train()
        if labels is not None and self.bank is None:
            labels = labels[nodes]
        return weight_report(torch.softmax(scores, 1) * scores.shape[1], cosine, own, labels)

    def _encode_again(self, views: EncodedViews) -> None:
        """The same views with fresh noise."""
        self._memory.forget_z()
        views.u, views.v = views.pair.encode()

    @torch.no_grad()
    def _fill(self, bank: Bank) -> None:
        """Before the first step: every row from the untrained encoder."""
        for pair in self.encoding.pairs(0):
            self._refresh(bank, pair.nodes, *pair.encode())

    def _refresh(self, bank: Bank, nodes: Tensor, u: Tensor, v: Tensor) -> None:
        """Write the rows of all workers, so that all have the same table."""
        gather = self.team.gather
        bank.refresh(gather(nodes.to(u.device)[:, None]).squeeze(1), gather(u.detach()), gather(v.detach()))

    def _all_rows(self, x: Tensor) -> int:
        """Rows of all workers together."""
        return int(self.team.total(torch.tensor(len(x))))

    def _terms(
        self, views: EncodedViews, u: Tensor, v: Tensor, *, detach_metric: bool = False, with_nce: bool = False
    ) -> Terms:
        tau, tile, noise = self.spec.objective.temperature, self.spec.sampling.tile, views.pair.noise
        p, q = normalize(u) / tau, normalize(v)
        seen_u, seen_v = (u.detach(), v.detach()) if detach_metric else (u, v)
        if not isinstance(self.metric, FactorMetric):
            return rowwise_terms(p, q, seen_u, seen_v, self.metric, factor=self.factor)
        h, g = factors_in_pieces(self.metric, seen_u, seen_v, noise)
        if self.bank is None:
            return nml_terms(
                p, q, h, g, factor=self.factor, tile=tile, memory=self._memory, with_nce=with_nce, team=self.team
            )
        # Gradients do not reach a negative, so they must not reach the other side of the positive either: an anchor
        # pulled from both sides and pushed from one would draw all embeddings together.
        positives = (p * q.detach()).sum(1), (p.detach() * q).sum(1)
        bank_h, bank_g = views.bank_weights
        anchors = self._all_rows(p)
        both = (
            bank_terms(
                rows, positive, table, own, others, factor=self.factor, anchors=anchors, tile=tile, with_nce=with_nce
            )
            for rows, positive, table, own, others in (
                (p, positives[0], self.bank.v, h, bank_g),
                (q / tau, positives[1], self.bank.u, g, bank_h),
            )
        )
        return Terms(*((forth + back) / 2 for forth, back in zip(*both, strict=True)))


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
