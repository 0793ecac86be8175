"""Messages between two processes: a JSON head and raw arrays, each preceded by its length; nothing is unpickled.

    4 bytes   b"NML1"
    4 bytes   length of the head, unsigned, little-endian
    head      {"head": {…}, "arrays": [[name, type, [sizes]], …]} as UTF-8
    arrays    their bytes one after the other, C order, little-endian

Sizes are checked before anything is read, so that a broken peer costs no memory. Needs numpy alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAGIC = b"NML1"
PREFIX_BYTES = 8
MOST_HEAD_BYTES = 16 << 20
MOST_ARRAY_BYTES = 4 << 30  # all arrays of a message together: a class and a confidence for 250 million nodes
MOST_ARRAYS = 64
_TYPES = ("<i8", "<i4", "|i1", "<f4", "<f8")
_DIMENSIONS = 2

Arrays = dict[str, NDArray[Any]]


class FrameError(ValueError):
    """What arrived is no frame, or a frame cut short: the two processes no longer understand each other."""


class Form(NamedTuple):
    """What an array that follows the head will be."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(self.dtype.itemsize * np.prod(self.shape, dtype=object)) if self.shape else self.dtype.itemsize

    def array(self, data: bytes | bytearray) -> NDArray[Any]:
        """The array in these bytes, shared and not copied."""
        return np.frombuffer(data, self.dtype).reshape(self.shape)


def encode(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> list[bytes | memoryview]:
    """The parts to be written, in order. Arrays are not copied unless they must be.

    Raises:
        FrameError: an array of another type than int64, int32, int8, float32 or float64, or a frame beyond the bounds.
    """
    forms: list[Form] = []
    bodies: list[memoryview] = []
    for name, array in (arrays or {}).items():
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
        forms.append(_checked_form(name, plain.dtype.str, plain.shape))
        bodies.append(plain.reshape(-1).view(np.uint8).data)
    _check_total(forms)
    listed = [[form.name, form.dtype.str, list(form.shape)] for form in forms]
    text = json.dumps({"head": dict(head), "arrays": listed}, allow_nan=False).encode()
    if len(text) > MOST_HEAD_BYTES:
        raise FrameError(f"a head of {len(text)} bytes; at most {MOST_HEAD_BYTES} are sent")
    return [MAGIC + struct.pack("<I", len(text)), text, *bodies]


def head_length(prefix: bytes) -> int:
    """How many bytes of head follow the first PREFIX_BYTES of a frame."""
    if len(prefix) != PREFIX_BYTES or prefix[:4] != MAGIC:
        raise FrameError(f"a frame begins with {MAGIC!r} and a length, not with {prefix[:8]!r}")
    length = int(struct.unpack("<I", prefix[4:])[0])
    if length > MOST_HEAD_BYTES:
        raise FrameError(f"a head of {length} bytes; at most {MOST_HEAD_BYTES} are read")
    return length


def parse_head(text: bytes) -> tuple[dict[str, Any], list[Form]]:
    """The head, and the arrays that follow it."""
    try:
        document = json.loads(text)
        head, listed = document["head"], document["arrays"]
        if not isinstance(head, dict) or len(listed) > MOST_ARRAYS:
            raise FrameError(f"a head must be an object with at most {MOST_ARRAYS} arrays")
        forms = [_checked_form(name, dtype, tuple(shape)) for name, dtype, shape in listed]
    except FrameError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError(f"the head of a frame cannot be read ({error})") from error
    _check_total(forms)
    return head, forms


def write(stream: BinaryIO, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
    """Write one frame and flush it."""
    for part in encode(head, arrays):
        stream.write(part)
    stream.flush()


def read(stream: BinaryIO) -> tuple[dict[str, Any], Arrays] | None:
    """The next frame; None if the stream ends before it.

    Raises:
        FrameError: it ends within the frame, or this is none.
    """
    prefix = stream.read(PREFIX_BYTES)
    if not prefix:
        return None
    head, forms = parse_head(_exactly(stream, head_length(prefix)))
    return head, {form.name: form.array(_exactly(stream, form.nbytes)) for form in forms}


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise FrameError(f"the stream ended after {len(data)} of {size} bytes")
    return data


def _checked_form(name: Any, dtype: Any, shape: tuple[Any, ...]) -> Form:
    if not isinstance(name, str) or dtype not in _TYPES:
        raise FrameError(f"array {name!r} of type {dtype!r}; known types are {', '.join(_TYPES)}")
    if len(shape) > _DIMENSIONS or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
        raise FrameError(f"array {name!r} of shape {shape!r}; at most {_DIMENSIONS} dimensions are sent")
    return Form(name, np.dtype(dtype), shape)


def _check_total(forms: list[Form]) -> None:
    total = sum(form.nbytes for form in forms)
    if total > MOST_ARRAY_BYTES:
        raise FrameError(f"arrays of {total} bytes; at most {MOST_ARRAY_BYTES} are sent")
    if len({form.name for form in forms}) != len(forms):
        raise FrameError("two arrays of one name")
