"""Classes of nodes from a few labels that the user supplies: logistic regression on frozen vectors.

How good it is, is measured on labels that the measured classifier has not seen: K folds with every class in each; for
each fold the decay is chosen on a quarter of the other folds (by cross-entropy), the classifier then fitted on all of
them, and the fold looked at once. Predictions come from one further classifier, made alike of all labels.

Of very many labels a seeded sample is used, as the protocol text says. Where even a few labels of each class are too
much work (trainer.inference.effort), decay is not chosen, there are two folds or none, and each fit has fewer
iterations; beyond that the request is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.seeds import generator
from trainer.errors import InvalidInput
from trainer.evaluation.rows import Rows
from trainer.inference.effort import PER_CLASS, Effort, check_predictions, effort, most_rows
from trainer.inference.logistic import Scaling, fit, loss, probabilities

MOST_LABELS = 100_000
MOST_CLASSES = 1_000
DECAYS = (1.0, 0.1, 0.03, 0.01, 0.003, 1e-3, 1e-4)  # from stiff to free, each starting from the one before
ONLY_DECAY = 1e-2  # where there are too few labels, or too much work, for a choice
FOLDS = 5


def classify(
    vectors: NDArray[np.float32] | Tensor,
    rows: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: int,
    *,
    predict: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Learn from labelled rows, tell the class of others. Deterministic for a seed.

    Args:
        vectors: [N, dim], perhaps memory-mapped: labelled rows are gathered, others read in pieces.
        rows, labels: [n] row numbers and class numbers below `classes`.
        predict: [p] rows to classify; none: all without a label.

    Returns:
        {"accuracy", "deviation", "majority", "reason", "protocol", "folds", "used"}: mean accuracy (share) over folds
        and its standard deviation between them, None with a reason where labels do not suffice; the share of the
        commonest class, which a guess attains. And arrays rows [p] int64, classes [p] int32, confidence [p] float32,
        the classifier's own probability.

    Raises:
        InvalidInput: not two classes, a row that is none, contradicting labels, more than the bounds, more work than
            a request may be.
    """
    table = Rows.of(vectors)
    if not 0 <= seed < 2**63:
        raise InvalidInput(f"seed is {seed}; give a number of at least 0, below 2^63.")
    rows, labels = _checked(rows, labels, classes, len(table))
    wanted = _wanted(rows, predict, len(table))
    present, y = (torch.from_numpy(part) for part in np.unique(labels, return_inverse=True))
    if len(present) < 2:
        raise InvalidInput(f"all {len(labels)} labels are of one class; give examples of at least 2.")
    check_predictions(len(wanted), table.dim, len(present))
    chosen = _sampled(y, table.dim, len(present), seed)
    y = y[chosen]
    spent = effort(len(y), table.dim, len(present))
    raw = table.take(torch.from_numpy(rows)[chosen])
    figures = _judge(raw, y, len(present), seed, spent)
    scaling, weight = _learn(raw, y, len(present), seed, -1, spent)
    used = f"{len(y)} of {len(labels)} labels" if len(y) < len(labels) else f"{len(labels)} labels"
    figures["used"] = len(y)
    figures["majority"] = float(torch.bincount(y).max()) / len(y)
    figures["protocol"] = f"logistic regression on frozen vectors, {used}, {figures['protocol']}"
    found = torch.empty(len(wanted), dtype=torch.int32)
    confidence = torch.empty(len(wanted), dtype=torch.float32)
    for where, piece in table.gathered(torch.from_numpy(wanted)):
        best = probabilities(scaling(piece), weight).max(1)
        found[where], confidence[where] = present[best.indices].int(), best.values.float()
    return figures, {"rows": wanted, "classes": found.numpy(), "confidence": confidence.numpy()}


def _checked(
    rows: NDArray[np.int64], labels: NDArray[np.int64], classes: int, table: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ascending rows without repetition, and their labels."""
    if rows.shape != labels.shape or rows.ndim != 1:
        raise InvalidInput(f"{rows.size} rows, but {labels.size} labels. Give one label per row.")
    if not 2 <= len(rows) <= MOST_LABELS:
        raise InvalidInput(f"{len(rows)} labels; give 2 to {MOST_LABELS:,}.")
    if not 2 <= classes <= MOST_CLASSES:
        raise InvalidInput(f"{classes} class{'es' * (classes != 1)}; there may be 2 to {MOST_CLASSES:,}.")
    _check_rows("rows", rows, table)
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidInput(f"labels[{i}] is {labels[i]}; classes are 0 to {classes - 1}.")
    order = np.argsort(rows, kind="stable")
    ordered, theirs = rows[order], labels[order]
    same = ordered[1:] == ordered[:-1]
    if (clash := same & (theirs[1:] != theirs[:-1])).any():
        i, j = order[int(clash.argmax())], order[int(clash.argmax()) + 1]
        raise InvalidInput(f"labels {i} and {j} are of the same node, but differ. Give each node one label.")
    first = np.append(True, ~same)
    return ordered[first], theirs[first]


def _check_rows(name: str, rows: NDArray[np.int64], table: int) -> None:
    wrong = (rows < 0) | (rows >= table)
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidInput(f"{name}[{i}] is {rows[i]}; rows are 0 to {table - 1}.")


def _wanted(labelled: NDArray[np.int64], predict: NDArray[np.int64] | None, table: int) -> NDArray[np.int64]:
    if predict is not None:
        _check_rows("predict", predict, table)
        return predict.astype(np.int64)
    others = np.ones(table, dtype=bool)
    others[labelled] = False
    return np.flatnonzero(others)


def _sampled(y: Tensor, dim: int, classes: int, seed: int) -> Tensor:
    """Which labels are used, ascending: all, or a random share of each class, at least PER_CLASS of it."""
    most = most_rows(dim, classes)
    if len(y) <= most:
        return torch.arange(len(y))
    draw = torch.rand(len(y), generator=generator(seed, "classify sample"))
    rank = _rank_in_class(y, draw)
    size = torch.bincount(y, minlength=classes)
    quota = (size * (most - PER_CLASS * classes)).div(len(y), rounding_mode="floor") + PER_CLASS
    return (rank < quota[y]).nonzero().squeeze(1)


def _rank_in_class(y: Tensor, draw: Tensor) -> Tensor:
    """How many of the same class have a smaller draw.  [n] -> [n]."""
    order = draw.argsort(stable=True)
    order = order[y[order].argsort(stable=True)]
    size = torch.bincount(y)
    starts = size.cumsum(0) - size
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y)) - starts[y[order]]
    return rank


def _judge(raw: Tensor, y: Tensor, classes: int, seed: int, spent: Effort) -> dict[str, Any]:
    """Accuracy on folds that their classifier has not seen."""
    smallest = int(torch.bincount(y, minlength=classes).min())
    reason = None
    if smallest < 2:
        reason = "a class has a single example, and none would be left to judge by; give at least 2 of each"
    elif not spent.judges:
        reason = f"{classes} classes take too long to be learned more than once; give labels of fewer classes"
    if reason is not None:
        return {"accuracy": None, "deviation": None, "folds": 0, "reason": reason, "protocol": "not judged"}
    folds = 2 if spent.is_heavy else min(FOLDS, smallest)
    fold = _rank_in_class(y, torch.rand(len(y), generator=generator(seed, "classify folds"))) % folds
    shares = []
    for number in range(folds):
        learned, held = (fold != number).nonzero().squeeze(1), (fold == number).nonzero().squeeze(1)
        scaling, weight = _learn(raw[learned], y[learned], classes, seed, number, spent)
        guessed = probabilities(scaling(raw[held]), weight).argmax(1)
        shares.append(float((guessed == y[held]).double().mean()))
    how = "" if spent.is_heavy else ", decay chosen inside each fold"
    return {
        "accuracy": float(np.mean(shares)), "deviation": float(np.std(shares, ddof=1)), "folds": folds, "reason": None,
        "protocol": f"accuracy over {folds} stratified folds (mean and deviation between folds){how}",
    }  # fmt: skip


def _learn(raw: Tensor, y: Tensor, classes: int, seed: int, fold: int, spent: Effort) -> tuple[Scaling, Tensor]:
    """Choose the decay on a quarter of each class, unless that is too much work, then fit on all of these rows."""
    scaling = Scaling.of(raw)
    x = scaling(raw)
    rank = _rank_in_class(y, torch.rand(len(y), generator=generator(seed, "classify choice", fold + 1)))
    held = (rank % 4 == 1).nonzero().squeeze(1)  # of a class with one label none, of one with 2 to 5 labels one
    if spent.is_heavy or not len(held):
        return scaling, fit(x, y, classes, ONLY_DECAY, iterations=spent.iterations)
    learned = (rank % 4 != 1).nonzero().squeeze(1)
    tried: list[tuple[float, Tensor, float]] = []
    weight = None
    for decay in DECAYS:
        weight = fit(x[learned], y[learned], classes, decay, weight)
        tried.append((loss(x[held], y[held], weight), weight, decay))
    _, start, decay = min(tried, key=lambda attempt: attempt[0])  # of equals the stiffest
    return scaling, fit(x, y, classes, decay, start)
