"""Class names to class numbers, one way for every source."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.errors import InvalidInput

MAX_TEXT = 256  # characters of an id or a class: numpy gives all of them the width of the longest
MAX_CLASSES = 10_000  # their names are in every manifest and are read whole
LONG_LABEL = f"has more than {MAX_TEXT} characters. Shorten it, or choose another column."


def encode_labels(values: NDArray[np.generic]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Numbers into the sorted class names, and the names.  values: [N] integers or text -> [N], names.

    The integer -1 and the empty text mean "no label" and become -1. Integers, also written as text, sort by value.

    Raises:
        InvalidInput: values of another type, integers below -1, a name that is too long, or too many of them.
    """
    if values.dtype.kind in "bui":
        numbers, position = np.unique(values.astype(np.int64), return_inverse=True)
        if len(numbers) and numbers[0] < -1:
            row = int((values == numbers[0]).argmax())
            raise InvalidInput(f"label {numbers[0]} of node {row}: classes count from 0, and -1 means unlabelled.")
        check_classes(len(numbers) - int(-1 in numbers))
        return _without(numbers == -1, position), tuple(str(n) for n in numbers if n != -1)
    if values.dtype.kind != "U":
        raise InvalidInput(f"labels have type {values.dtype}; give integers or text, -1 or empty where unknown.")
    long = first_long(values)
    if long is not None:
        raise InvalidInput(f"label of node {long}: {LONG_LABEL}")
    names, position = np.unique(values, return_inverse=True)
    whole = [name for name in names.tolist() if name]
    if whole and all(_is_integer(name) for name in whole):
        as_integers = np.array([int(name) if name else -1 for name in names.tolist()], dtype=np.int64)
        return encode_labels(as_integers[position])
    check_classes(len(whole))
    return _without(names == "", position), tuple(whole)


def check_classes(count: int) -> None:
    """Raises InvalidInput for more classes than a graph may have."""
    if count > MAX_CLASSES:
        what = f"labels: more than {MAX_CLASSES:,} different classes, so they are hardly classes"
        raise InvalidInput(f"{what}. Leave the labels out, or group them.")


def first_long(texts: NDArray[Any]) -> int | None:
    """Position of the first of the texts [N] that has more than MAX_TEXT characters."""
    if texts.dtype.itemsize <= 4 * MAX_TEXT:  # as wide as the longest
        return None
    long = np.flatnonzero(np.strings.str_len(texts) > MAX_TEXT)
    return int(long[0]) if len(long) else None


def _without(missing: NDArray[np.bool_], position: NDArray[np.intp]) -> NDArray[np.int64]:
    """Positions among all values to positions among those that are labels; -1 for the others."""
    number = np.where(missing, -1, np.cumsum(~missing) - 1)
    result: NDArray[np.int64] = number[position].astype(np.int64)
    return result


def _is_integer(text: str) -> bool:
    """Whether text is how str(int) writes a 63-bit integer, so that turning it into one loses nothing."""
    return len(text) <= 18 and text.removeprefix("-").isdecimal() and text == str(int(text))
