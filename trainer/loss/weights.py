"""Does the negative metric act?  Weights N·m_ij by kind of pair, where 1 is the uniform weight (methods 5.5).

A metric that does its work gives false negatives (same class) weights below 1 and true negatives weights above 1.
Means are reported rather than the paper's sums, which mix in class balance. Labels are only looked at, never learned
from. This runs every epoch: 512 anchors of 20,000 nodes take well under a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ACTIVE_FROM = 0.02  # departure from the uniform weight below which the metric counts as inactive
AUC_PAIRS = 100_000  # most pairs of each kind in the AUC: sorting all of them would cost more than the epoch
_ROWS = 16  # anchors looked at together


def weight_report(weights: Tensor, cosine: Tensor, anchors: Tensor, y: Tensor | None) -> dict[str, float]:
    """Figures on the weights of A sampled anchors.

    weights: [A, N], N·m_ij, so each row has mean 1; cosine: [A, N] of the embeddings; anchors: [A] node index of each
    row; y: [N] with -1 for unlabelled nodes, or None. Keys: weight_self, _min, _max, _std, _kl (mean KL(P0 ‖ P_i)),
    _cosine (correlation with the cosine), _active (1 or 0); with labels, and where there are such pairs, weight_fn,
    _tn and _auc (of 1 - weight as a detector of false negatives).
    """
    anchors, label = anchors.to(weights.device), None
    if y is not None and bool((y >= 0).any()):
        label = y.to(weights.device)
    own = weights[torch.arange(len(anchors), device=weights.device), anchors]
    report = {"weight_self": float(own.mean())} | _spread(weights, cosine)
    if label is not None:
        report |= _by_kind(weights, own, anchors, label)
    kinds = [report[key] for key in ("weight_fn", "weight_tn") if key in report]
    departures = [abs(mean - 1) for mean in [*kinds, report["weight_self"]]] if kinds else [report["weight_std"]]
    report["weight_active"] = float(max(departures) >= ACTIVE_FROM)
    return report


def describe_activity(report: Mapping[str, float]) -> str:
    """One sentence on whether the metric acts, and which way."""
    figures = [
        f"{report[key]:.3f} on {kind}"
        for key, kind in (
            ("weight_fn", "false negatives"),
            ("weight_tn", "true negatives"),
            ("weight_self", "the node itself"),
        )
        if key in report
    ]
    if "weight_fn" not in report:
        figures.append(f"standard deviation {report['weight_std']:.3f}")
    said = "N·m is " + ", ".join(figures)
    if not report["weight_active"]:
        return f"The metric is inactive: {said}, within {ACTIVE_FROM:g} of uniform weights."
    if "weight_fn" not in report or "weight_tn" not in report:
        return f"The metric acts: {said}."
    apart = report["weight_tn"] - report["weight_fn"]
    if apart >= ACTIVE_FROM:
        return f"The metric acts as intended, false negatives weigh less: {said} (AUC {report['weight_auc']:.2f})."
    if apart <= -ACTIVE_FROM:
        return f"The metric acts against its purpose, false negatives weigh more: {said}."
    return f"The metric acts, but hardly tells false from true negatives: {said}."


def _spread(weights: Tensor, cosine: Tensor) -> dict[str, float]:
    """Figures that need no labels, by blocks of rows that stay in the processor's cache."""
    sums = torch.zeros(6, dtype=torch.float64)
    low, high = float("inf"), float("-inf")
    tiny = torch.finfo(weights.dtype).tiny  # a weight that underflowed to 0 must not make KL infinite
    for w, c in zip(weights.split(_ROWS), cosine.split(_ROWS), strict=True):
        d = (w - 1).flatten()  # rows have mean 1: around it, squares lose no digits
        c = c.flatten().to(d)
        logs = w.clamp_min(tiny).log_().sum()
        sums += torch.stack([d.sum(), c.sum(), d.dot(d), c.dot(c), d.dot(c), logs]).cpu().double()
        block = torch.aminmax(w)
        low, high = min(low, float(block.min)), max(high, float(block.max))
    d_mean, c_mean, d2, c2, dc, logs_mean = (sums / weights.numel()).tolist()
    std_w, std_c = (max(0.0, square - mean**2) ** 0.5 for square, mean in ((d2, d_mean), (c2, c_mean)))
    correlation = 0.0  # float32 noise around a constant correlates with nothing
    if min(std_w, std_c) > 1e-6:
        correlation = (dc - d_mean * c_mean) / (std_w * std_c)
    return {
        "weight_min": low,
        "weight_max": high,
        "weight_std": std_w,
        "weight_kl": -logs_mean,
        "weight_cosine": correlation,
    }


def _by_kind(weights: Tensor, own: Tensor, anchors: Tensor, y: Tensor) -> dict[str, float]:
    """Means over FN and TN pairs and their AUC; self pairs and unlabelled nodes belong to neither."""
    labelled = torch.nonzero(y[anchors] >= 0).flatten()  # rows with a labelled anchor
    same = -float(own[labelled].double().sum())
    known = same  # sum over all labelled nodes but the anchor
    mask = (y >= 0).to(weights)
    for rows in labelled.split(_ROWS):
        block = weights[rows]
        known += float((block @ mask).double().sum())
        same += float((block * (y[anchors[rows]][:, None] == y)).sum(1).double().sum())
    fn, tn = _number_pairs(anchors[labelled], y)
    found = {}
    if fn.total:
        found["weight_fn"] = same / fn.total
    if tn.total:
        found["weight_tn"] = (known - same) / tn.total
    if fn.total and tn.total:
        generator = torch.Generator().manual_seed(0)  # fixed: equal weights give equal figures, epoch after epoch
        low, high = (weights[labelled[row], node] for row, node in (fn.draw(generator), tn.draw(generator)))
        found["weight_auc"] = auc_below(low, high)
    return found


@dataclass(frozen=True)
class _Pairs:
    """Pairs of one kind, numbered without listing them: in each row a stretch of `order` with a gap in it."""

    counts: Tensor  # [A] pairs in each row
    first: Tensor  # [A] place in `order` from which a row's pairs are counted
    gap: Tensor  # [A] place in `order` at which the gap begins
    gap_length: Tensor  # [A]
    order: Tensor  # labelled nodes, sorted by class

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(row, node) of every pair, or of AUC_PAIRS pairs drawn with replacement."""
        total = self.total
        number = torch.arange(total) if total <= AUC_PAIRS else torch.randint(total, (AUC_PAIRS,), generator=generator)
        number = number.to(self.counts.device)
        ends = self.counts.cumsum(0)
        row = torch.searchsorted(ends, number, right=True)
        place = self.first[row] + number - (ends - self.counts)[row]
        place += torch.where(place >= self.gap[row], self.gap_length[row], 0)
        return row, self.order[place]


def _number_pairs(anchors: Tensor, y: Tensor) -> tuple[_Pairs, _Pairs]:
    """The FN pairs (own class but the anchor itself) and TN pairs (all other classes) of labelled anchors."""
    order = torch.argsort(y, stable=True)
    order = order[int((y < 0).sum()) :]
    place = torch.empty_like(y)
    place[order] = torch.arange(len(order), device=y.device)
    start = torch.searchsorted(y[order], y[anchors])
    size = torch.searchsorted(y[order], y[anchors], right=True) - start
    one, none = torch.ones_like(size), torch.zeros_like(size)
    fn = _Pairs(size - 1, start, place[anchors], one, order)
    tn = _Pairs(len(order) - size, none, start, size, order)
    return fn, tn


def auc_below(low: Tensor, high: Tensor) -> float:
    """P(a < b) + P(a = b)/2 for random a of `low`, b of `high`: the AUC of -value as a detector of `low`."""
    ordered = high.sort().values
    not_above = torch.searchsorted(ordered, low, right=True)  # b <= a
    below = torch.searchsorted(ordered, low)  # b < a
    wins = len(high) - not_above.double() + (not_above - below).double() / 2
    return float(wins.mean()) / len(high)
