"""An epoch of a learner with nothing around it: neither events nor checkpoints."""

from __future__ import annotations

from trainer.learning.learner import Learner
from trainer.run.checkpoint import Progress


def train_epoch(learner: Learner, epoch: int) -> dict[str, float]:
    """All steps of an epoch; returns the means of their figures."""
    progress = Progress()
    for step in learner.steps_of(epoch):
        progress.add(learner.step(step))
    return progress.end_epoch()
