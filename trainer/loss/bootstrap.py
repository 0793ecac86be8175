"""How far predictions point away from their targets: the loss without negatives of BGRL (methods 4.1)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize


def bootstrap_loss(predicted: Tensor, target: Tensor, anchors: int | None = None) -> Tensor:
    """Mean of 1 − cos(predicted_i, target_i), in [0, 2]; no gradient reaches the target.  [n, d], [n, d].

    anchors: rows of all workers, where these are one worker's: its share of the mean.
    """
    cosines = (normalize(predicted, eps=1e-12) * normalize(target.detach(), eps=1e-12)).sum(1)
    return (1 - cosines).sum() / (anchors or len(predicted))
