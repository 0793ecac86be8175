"""Arrays that stay in their files: mapped, walked in pieces, and given back to the system after use.

Pages of a memory map that were read count as this process's memory until they are given back, so whoever walks a large
array copies or hashes a piece at a time and releases the map behind it.

`np.load(path, mmap_mode="r")` opens a map for a while. A server that keeps hundreds of them open takes `map_npy`: maps
of Python's mmap module, and so numpy's, each hold a file descriptor for as long as they live; these hold none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:  # tables are imported, and refused, without the seconds that loading torch takes
    from torch import Tensor

PIECE_BYTES = 8 << 20  # large enough for full speed, small beside everything else
_WINDOW = 1 << 21  # a read fault maps this much around the address, where the system caches files in huge pages
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


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


def map_bytes(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, read-only and shared with other processes; unmapped with the last array that uses them.

    Deleting or replacing the file changes nothing for those who have mapped it.

    Raises:
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:  # the system maps no empty file
            return np.frombuffer(b"", np.uint8)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address is None or address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    memory = (ctypes.c_char * size).from_address(address)
    unmap = weakref.finalize(memory, _libc.munmap, address, size)
    unmap.atexit = False  # the end of the process unmaps by itself, and not before its last thread has ended
    return np.frombuffer(memoryview(memory).cast("B").toreadonly(), np.uint8)


def map_npy(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array of a .npy file, mapped by `map_bytes`; it must have this type and shape, in C order.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    with path.open("rb") as file:
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            found, fortran, kind = read(file)
        except ValueError as error:
            raise ValueError(f"{path.name}: is not a .npy file ({error})") from error
        start = file.tell()
    wanted = np.dtype(dtype)
    if kind != wanted or found != shape or (fortran and len(shape) > 1):
        raise ValueError(f"{path.name}: holds {kind} {list(found)}, where {wanted} {list(shape)} is expected")
    data = map_bytes(path)[start:]
    if data.nbytes != wanted.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{path.name}: is not as long as its header says")
    return data.view(wanted).reshape(shape)


def release(array: NDArray[Any]) -> None:
    """Give the pages of a mapped array back to the system; nothing is lost, they are read again when asked for.

    An array in memory is left alone, and so is a copy-on-write map, whose pages are the only place of what was written.
    """
    if array.nbytes and _is_mapped(array) and hasattr(mmap, "MADV_DONTNEED"):
        low, high = np.lib.array_utils.byte_bounds(array)
        start = low // mmap.PAGESIZE * mmap.PAGESIZE
        _libc.madvise(start, high - start, mmap.MADV_DONTNEED)


def _is_mapped(array: NDArray[Any]) -> bool:
    owner: Any = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    if isinstance(owner, np.memmap):
        return owner.mode != "c" and isinstance(owner._mmap, mmap.mmap)  # type: ignore[attr-defined]
    return isinstance(owner, memoryview) and isinstance(owner.obj, ctypes.Array)  # of `map_bytes`


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
