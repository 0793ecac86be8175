"""Early stopping: the run ends when the loss has not fallen for so many epochs, and the best encoder is exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Patience(nn.Module):
    """Remembers the encoder of the best epoch; all of it is part of the checkpoint."""

    best: Tensor
    waited: Tensor

    def __init__(self, encoder: nn.Module, epochs: int):
        super().__init__()
        self.epochs = epochs
        self.register_buffer("best", torch.tensor(torch.inf, dtype=torch.float64))
        self.register_buffer("waited", torch.tensor(0))
        for name, value in encoder.state_dict().items():
            self.register_buffer(_flat(name), value.detach().clone())

    @property
    def has_run_out(self) -> bool:
        return int(self.waited) >= self.epochs

    @torch.no_grad()
    def take_note(self, encoder: nn.Module, loss: float) -> None:
        """Of an epoch's loss."""
        if loss < float(self.best):
            self.best.fill_(loss)
            self.waited.zero_()
            for name, value in encoder.state_dict().items():
                self.get_buffer(_flat(name)).copy_(value)
        else:
            self.waited += 1

    def restore(self, encoder: nn.Module) -> None:
        """Put the best epoch's weights back."""
        encoder.load_state_dict({name: self.get_buffer(_flat(name)) for name in encoder.state_dict()})


def _flat(name: str) -> str:
    return f"kept_{name.replace('.', '_')}"
