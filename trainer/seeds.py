"""Random streams that are named, not remembered.

Every draw comes from a generator made of (run seed, purpose, counters). A resumed run therefore needs no stored
generator state, and an epoch's views can be drawn again whenever they are wanted.

Where a draw must not depend on what is drawn beside it (whether an edge is dropped, which neighbours a node samples),
it is a hash of a key and of the thing itself: any batch, worker or process that asks gets the same answer.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

BITS = 53  # of a hashed draw: as many as a float64 holds


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The stream for one purpose, such as `generator(seed, "views", epoch)`."""
    words = _words(seed, purpose, counters)
    return torch.Generator(device).manual_seed(int(words[0]) << 32 >> 1 | int(words[1]))


def key(seed: int, purpose: str, *counters: int) -> int:
    """A 63-bit name for the hashed draws of one purpose."""
    words = _words(seed, purpose, counters)
    return int(words[0]) << 31 ^ int(words[1])


def hashed(key: int, index: Tensor) -> Tensor:
    """A uniform integer in [0, 2^53) for each index, the same whenever and in whatever company it is asked for.

    index: int64 of any shape. Stafford's variant 13 of the 64-bit finaliser of MurmurHash3, on index + key.
    """
    x = index + key
    x = (x ^ (x >> 30 & 0x3_FFFF_FFFF)).mul_(-0x40A7_B892_E31B_1A47)  # torch shifts keep the sign: mask it off
    x = (x ^ (x >> 27 & 0x1F_FFFF_FFFF)).mul_(-0x6B2F_B644_ECCE_EE15)
    x ^= x >> 31 & 0x1_FFFF_FFFF
    return x >> 11 & (1 << BITS) - 1


def _words(seed: int, purpose: str, counters: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters]).generate_state(2, np.uint32)
