"""The contrast of NML-GCL between two views of some nodes: the metric, the negatives it weighs, the loss's terms.

Anchors meet each other, or a bank of the latest embeddings of all nodes. Metrics that factor go through the tiled
kernel, the others row block by row block (trainer.nn.metric).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from trainer.distributed.team import Team
from trainer.loss.bank import Bank
from trainer.loss.nml import Terms, bank_terms, nml_terms
from trainer.loss.rowwise import rowwise_terms
from trainer.loss.tiled import TileMemory
from trainer.nn.metric import FactorMetric, Metric, factors_in_pieces

BankWeights = tuple[Tensor | None, Tensor | None]


class Weights(NamedTuple):
    """What some anchors give their negatives: N·m_ij and the cosine of each pair, [A, M]; `own`: their own columns."""

    weights: Tensor
    cosine: Tensor
    own: Tensor


class MetricContrast(nn.Module):
    """Args:
    tau: temperature; factor: N−1 of the loss; reg: total KL coefficient a; tile: side of the tiles, None for 1024.
    """

    def __init__(
        self, metric: Metric, bank: Bank | None, *, tau: float, factor: float, reg: float, tile: int | None,
        tiles: TileMemory, team: Team,
    ):  # fmt: skip
        super().__init__()
        self.metric, self.bank = metric, bank
        self.tau, self.factor, self.reg, self.tile, self.tiles, self.team = tau, factor, reg, tile, tiles, team
        # M is frozen except in its own steps: the encoder's gradients pass through it without reaching its parameters.
        self.learned = [parameter for parameter in metric.parameters() if parameter.requires_grad]
        metric.requires_grad_(False)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Let gradients reach the metric's parameters."""
        for parameter in self.learned:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for parameter in self.learned:
                parameter.requires_grad_(False)

    def columns(self, rows: int) -> int:
        """How many negatives each anchor meets, where this worker holds `rows` of them."""
        return self.all_rows(rows) if self.bank is None else len(self.bank.u)

    def all_rows(self, rows: int) -> int:
        """Rows of all workers together."""
        return int(self.team.total(torch.tensor(rows)))

    def weigh_bank(self, noise: torch.Generator) -> BankWeights:
        """The metric's factors for all rows of the bank."""
        if self.bank is None:
            return None, None
        assert isinstance(self.metric, FactorMetric)
        return self.bank.weigh(self.metric, noise)

    def refresh_bank(self, nodes: Tensor, u: Tensor, v: Tensor) -> None:
        """Write the rows of all workers, so that all have the same table."""
        if self.bank is not None:
            gather = self.team.gather
            self.bank.refresh(gather(nodes.to(u.device)[:, None]).squeeze(1), gather(u.detach()), gather(v.detach()))

    def terms(
        self, u: Tensor, v: Tensor, noise: torch.Generator, bank_weights: BankWeights, *, detach_metric: bool = False,
        with_nce: bool = False,
    ) -> Terms:  # fmt: skip
        """The loss's terms for embeddings u, v of the same nodes, [n, d]."""
        p, q = normalize(u) / self.tau, normalize(v)
        seen_u, seen_v = (u.detach(), v.detach()) if detach_metric else (u, v)
        if not isinstance(self.metric, FactorMetric):
            return rowwise_terms(p, q, seen_u, seen_v, self.metric, factor=self.factor)
        h, g = factors_in_pieces(self.metric, seen_u, seen_v, noise)
        if self.bank is None:
            return nml_terms(
                p, q, h, g, factor=self.factor, tile=self.tile, memory=self.tiles, with_nce=with_nce, team=self.team
            )
        # Gradients do not reach a negative, so they must not reach the other side of the positive either: an anchor
        # pulled from both sides and pushed from one would draw all embeddings together.
        positives = (p * q.detach()).sum(1), (p.detach() * q).sum(1)
        bank_h, bank_g = bank_weights
        anchors = self.all_rows(len(p))
        both = (
            bank_terms(
                rows, positive, table, own, others, factor=self.factor, anchors=anchors, tile=self.tile,
                with_nce=with_nce,
            )
            for rows, positive, table, own, others in (
                (p, positives[0], self.bank.v, h, bank_g),
                (q / self.tau, positives[1], self.bank.u, g, bank_h),
            )
        )  # fmt: skip
        return Terms(*((forth + back) / 2 for forth, back in zip(*both, strict=True)))

    @torch.no_grad()
    def weights_of(self, chosen: Tensor, nodes: Tensor, u: Tensor, v: Tensor, bank_weights: BankWeights) -> Weights:
        """The weights of sampled anchors, as many of `chosen` (rows of u) as 256 MB of pairs allow."""
        self.metric.eval()
        if isinstance(self.metric, FactorMetric):
            rows = chosen.to(u.device)
            if self.bank is None:
                others, own = normalize(v), rows
                h, g = self.metric(u, v)
            else:
                others, own = self.bank.v, nodes.to(u.device)[rows]
                h, _ = self.metric(u, v)
                g = bank_weights[1]
            cosine = normalize(u[rows]) @ others.T
            scores = torch.zeros_like(cosine) if h is None or g is None else h[rows] @ g.T
        else:
            most = max(1, 2**28 // (len(v) * self.metric.bytes_per_pair))
            own = rows = chosen[:most].to(u.device)
            cosine = normalize(u[rows]) @ normalize(v).T
            z = cosine / self.tau
            positive = z.gather(1, rows[:, None]).squeeze(1)
            scores = self.metric.scores(z, positive, u[rows], v, transposed=False)
        self.metric.train()
        return Weights(torch.softmax(scores, 1) * scores.shape[1], cosine, own)
