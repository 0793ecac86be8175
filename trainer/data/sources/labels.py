"""Class names to class numbers, one way for every source."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.errors import InvalidInput


def encode_labels(values: NDArray[np.generic]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Numbers into the sorted class names, and the names.  values: [N] integers or text -> [N], names.

    The integer -1 and the empty text mean "no label" and become -1. Integers, also written as text, sort by value.

    Raises:
        InvalidInput: values of another type, or integers below -1.
    """
    if values.dtype.kind in "bui":
        numbers, position = np.unique(values.astype(np.int64), return_inverse=True)
        if len(numbers) and numbers[0] < -1:
            row = int((values == numbers[0]).argmax())
            raise InvalidInput(f"label {numbers[0]} of node {row}: classes count from 0, and -1 means unlabelled.")
        return _without(numbers == -1, position), tuple(str(n) for n in numbers if n != -1)
    if values.dtype.kind != "U":
        raise InvalidInput(f"labels have type {values.dtype}; give integers or text, -1 or empty where unknown.")
    names, position = np.unique(values, return_inverse=True)
    whole = [name for name in names.tolist() if name]
    if whole and all(_is_integer(name) for name in whole):
        as_integers = np.array([int(name) if name else -1 for name in names.tolist()], dtype=np.int64)
        return encode_labels(as_integers[position])
    return _without(names == "", position), tuple(whole)


def _without(missing: NDArray[np.bool_], position: NDArray[np.intp]) -> NDArray[np.int64]:
    """Positions among all values to positions among those that are labels; -1 for the others."""
    number = np.where(missing, -1, np.cumsum(~missing) - 1)
    result: NDArray[np.int64] = number[position].astype(np.int64)
    return result


def _is_integer(text: str) -> bool:
    """Whether text is how str(int) writes a 63-bit integer, so that turning it into one loses nothing."""
    return len(text) <= 18 and text.removeprefix("-").isdecimal() and text == str(int(text))
