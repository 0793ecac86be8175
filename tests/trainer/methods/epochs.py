"""An epoch of a method with nothing around it: neither events nor checkpoints."""

from __future__ import annotations

from trainer.methods.interface import Method
from trainer.run.checkpoint import Progress


def train_epoch(method: Method, epoch: int) -> dict[str, float]:
    """All steps of an epoch; returns the means of their figures."""
    progress = Progress()
    for views in method.views(epoch):
        progress.add(method.step(views))
    return progress.end_epoch()
