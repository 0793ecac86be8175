"""Random streams that are named, not remembered.

Every draw comes from a generator made of (run seed, purpose, counters). A resumed run therefore needs no stored
generator state, and an epoch's views can be drawn again whenever they are wanted.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The stream for one purpose, such as `generator(seed, "views", epoch)`."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters]).generate_state(2, np.uint32)
    return torch.Generator(device).manual_seed(int(words[0]) << 32 >> 1 | int(words[1]))
