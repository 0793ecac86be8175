"""Random streams that are named, not remembered.

Every draw comes from a generator made of (run seed, purpose, counters). A resumed run therefore needs no stored
generator state, and an epoch's views can be drawn again whenever they are wanted.

Where a draw must not depend on what is drawn beside it (whether an edge is dropped, which neighbours a node samples),
it is a hash of a key and of the thing itself: any batch, worker or process that asks gets the same answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # imports of tables hash with numpy alone
    import torch
    from torch import Tensor

BITS = 53  # of a hashed draw: as many as a float64 holds


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The stream for one purpose, such as `generator(seed, "views", epoch)`."""
    import torch

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
    return _finalise(index + key, _SIGNED, lambda x, by: x >> by & (1 << 64 - by) - 1)  # torch shifts keep the sign


def hashed_array(key: int, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`hashed` for numpy, on the CPU about twice as fast: the same integers. Overwrites `index`, of any shape."""
    index += np.uint64(key)
    return _finalise(index, _UNSIGNED, np.right_shift)


def _finalise(x: Any, multipliers: tuple[Any, ...], shift: Callable[[Any, int], Any]) -> Any:
    """The one definition of the hash, in place but for the last step; `shift` moves 64 bits right and fills with 0."""
    x ^= shift(x, 30)
    x *= multipliers[0]
    x ^= shift(x, 27)
    x *= multipliers[1]
    x ^= shift(x, 31)
    return shift(x, 64 - BITS)


_UNSIGNED = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
_SIGNED = tuple(int(word.astype(np.int64)) for word in _UNSIGNED)


def _words(seed: int, purpose: str, counters: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters]).generate_state(2, np.uint32)
