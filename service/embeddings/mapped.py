"""Arrays that stay in their files: mapped for reading, walked in pieces, written as their pieces come.

A map of Python's `mmap` module, and so of numpy, holds a file descriptor for as long as it lives. A process that serves
many tables of several files each would run out of them, so maps are made by the system's own call, which needs none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

PIECE_BYTES = 8 << 20  # large enough for full speed, small beside everything else
_NONE = ctypes.c_void_p(-1).value  # MAP_FAILED

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_bytes(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, read-only and shared with other processes; the map goes with the last array that uses it.

    Deleting or replacing the file changes nothing for those who have mapped it.

    Raises:
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:  # the system maps no empty file
            return np.frombuffer(b"", np.uint8)
        address = _system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address is None or address == _NONE:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    memory = (ctypes.c_char * size).from_address(address)
    undo = weakref.finalize(memory, _system.munmap, address, size)
    undo.atexit = False  # the end of the process unmaps by itself, and not before its last thread has ended
    return np.frombuffer(memoryview(memory).cast("B").toreadonly(), np.uint8)


def map_npy(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array of a .npy file, mapped by `map_bytes`; it must be of this very type and shape, in C order.

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
            raise ValueError(f"{path.name}: is no .npy file ({error})") from error
        start = file.tell()
    wanted = np.dtype(dtype)
    if kind != wanted or found != shape or (fortran and len(shape) > 1):
        raise ValueError(f"{path.name}: holds {kind} {list(found)}, where {wanted} {list(shape)} is expected")
    data = map_bytes(path)[start:]
    if data.nbytes != wanted.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{path.name}: is not as long as its header says")
    return data.view(wanted).reshape(shape)


def release(array: NDArray[Any]) -> None:
    """Give the pages behind a mapped array back to the system; nothing is lost, they are read again when asked for.

    Only for arrays of this module: what an array in memory holds would be lost.
    """
    page = mmap.PAGESIZE
    start = array.ctypes.data // page * page
    if array.nbytes and hasattr(mmap, "MADV_DONTNEED"):
        _system.madvise(start, array.ctypes.data + array.nbytes - start, mmap.MADV_DONTNEED)


def pieces(array: NDArray[Any], bytes_each: int = PIECE_BYTES) -> Iterator[tuple[int, NDArray[Any]]]:
    """Successive rows of a mapped array with the number of the first, released once the next are asked for."""
    rows = max(1, bytes_each // max(1, array.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        piece = array[start : start + rows]
        yield start, piece
        release(piece)


def write_npy(path: Path, dtype: DTypeLike, rows: int, parts: Iterable[NDArray[Any]]) -> None:
    """A .npy file [rows] from its successive parts.

    Written, not mapped: on a full disk a write fails with an error, where a store into a map kills the process.
    """
    kind = np.dtype(dtype)
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": (rows,)})
        written = 0
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype=kind).view(np.uint8).data)
            written += len(part)
    if written != rows:
        raise ValueError(f"{path.name}: {written} values for {rows} rows")
