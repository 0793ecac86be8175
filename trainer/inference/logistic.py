"""Multinomial logistic regression on a few thousand rows: one convex problem, one answer.

Minimises mean cross-entropy + decay/2 · ‖W‖² (the bias does not decay) by L-BFGS. The probe of training
(trainer.evaluation.probe) stops Adam where validation nodes say so, which takes hundreds of passes and labels to spare;
here somebody waits for the answer, and labels are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GRADIENT = 1e-4  # largest slope at which it is done, of a loss of about 1: below, no prediction changes


@dataclass(frozen=True)
class Scaling:
    """Rows minus their mean, over one length for all columns: decay then means the same whatever the vectors' unit."""

    mean: Tensor  # [d]
    length: Tensor  # root of the mean square of what is left

    @classmethod
    def of(cls, rows: Tensor) -> Scaling:
        mean = rows.mean(0, dtype=torch.float64).to(rows.dtype)
        length = (rows - mean).square_().mean(dtype=torch.float64).sqrt().to(rows.dtype)
        return cls(mean, torch.where(length > 0, length, torch.ones_like(length)))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) / self.length


def fit(
    x: Tensor, y: Tensor, classes: int, decay: float, start: Tensor | None = None, *, iterations: int = 100
) -> Tensor:
    """Weights [d + 1, classes], the last row being the bias.  x: [n, d], y: [n] class numbers; start: weights."""
    shape, rows = (x.shape[1] + 1, classes), torch.arange(len(y))

    def loss_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weight = torch.from_numpy(flat).view(shape).to(x.dtype)
        log_p = torch.log_softmax(x @ weight[:-1] + weight[-1], 1)
        error = log_p.exp()
        error[rows, y] -= 1
        error /= len(y)
        slope = (error.T @ x).T  # ten times as fast as x.T @ error where classes are few
        gradient = torch.cat([slope.add_(weight[:-1], alpha=decay), error.sum(0, keepdim=True)])
        value = float(-log_p[rows, y].mean(dtype=torch.float64)) + decay / 2 * float(weight[:-1].square().sum())
        return value, gradient.double().numpy().reshape(-1)

    from scipy.optimize import minimize

    begin = np.zeros(shape) if start is None else start.double().numpy()
    found = minimize(
        loss_and_gradient, begin.reshape(-1), method="L-BFGS-B", jac=True,
        options={"maxiter": iterations, "gtol": _GRADIENT, "ftol": 0.0},
    )  # fmt: skip
    return torch.from_numpy(found.x).view(shape).to(x.dtype)


def probabilities(x: Tensor, weight: Tensor) -> Tensor:
    """[n, d] -> [n, classes]."""
    return torch.softmax(x @ weight[:-1] + weight[-1], 1)


def loss(x: Tensor, y: Tensor, weight: Tensor) -> float:
    """Mean cross-entropy."""
    log_p = torch.log_softmax(x @ weight[:-1] + weight[-1], 1)
    return float(-log_p[torch.arange(len(y)), y].mean(dtype=torch.float64))
