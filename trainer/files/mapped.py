"""Arrays that stay in their files: walked in pieces, and given back to the system after use.

Pages of a memory map that were read count as this process's memory until they are given back, so whoever walks a large
array copies or hashes a piece at a time and releases the map behind it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # tables are imported, and refused, without the seconds that loading torch takes
    from torch import Tensor

PIECE_BYTES = 8 << 20  # large enough for full speed, small beside everything else
_WINDOW = 1 << 21  # a read fault maps this much around the address, where the system caches files in huge pages


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps behind a graph's arrays: torch tensors share their memory but do not know where it came from."""

    arrays: tuple[NDArray[Any], ...] = ()

    def release(self) -> None:
        """Give back all pages; see `release`."""
        for array in self.arrays:
            release(array)

    def __reduce__(self) -> tuple[type[Maps], tuple[()]]:
        return Maps, ()  # a pickled graph carries its arrays already; maps belong to this process


def release(array: NDArray[Any]) -> None:
    """Give the pages of a map back to the system; nothing is lost, they are read again when asked for.

    An array in memory is left alone, and so is a copy-on-write map, whose pages are the only place of what was written.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    mapping = getattr(owner, "_mmap", None)
    if isinstance(mapping, mmap.mmap) and owner.mode != "c" and hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_DONTNEED)


def pieces(array: NDArray[Any], *, row_bytes: int | None = None) -> Iterator[NDArray[Any]]:
    """Successive rows, contiguous, about PIECE_BYTES at a time.  row_bytes: what a row costs; none: what it holds."""
    if row_bytes is None:
        row_bytes = array.itemsize * int(np.prod(array.shape[1:]))
    rows = max(1, PIECE_BYTES // max(1, row_bytes))
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows])


def take(array: Tensor, at: Tensor, release: Callable[[], None], touch: int, out: Tensor | None = None) -> Tensor:
    """array[at] for ascending positions, with at most about `touch` bytes of a mapped array in memory at a time.

    Scattered rows map far more than they hold (a window each), so pages go back while gathering, not after.
    """
    import torch

    taken = array.new_empty(len(at), *array.shape[1:]) if out is None else out
    row_bytes = array.element_size() * array.shape[1:].numel()
    window = ((at + 1) * row_bytes - 1).div_(_WINDOW, rounding_mode="floor")  # where each row ends
    opened = window.diff(prepend=at.new_full((1,), -1)).clamp_max_(1 + row_bytes // _WINDOW).cumsum(0)
    ends = opened.div_(max(1, touch // _WINDOW), rounding_mode="floor").diff().nonzero().squeeze(1) + 1
    first = 0
    for last in [*ends.tolist(), len(at)]:
        torch.index_select(array, 0, at[first:last], out=taken[first:last])
        release()
        first = last
    return taken
