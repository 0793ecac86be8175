"""Ids and labels as libraries hold them, as the whole numbers or text that a graph and its files hold."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.sources.labels import MAX_TEXT, first_long
from trainer.errors import InvalidInput

# The columns that a pandas index without a name becomes on its way through a file.
PANDAS_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_LARGEST = int(np.iinfo(np.int64).max)
_EXACT = 2**53  # below it, float64 holds every whole number


@dataclass(frozen=True, eq=False)
class Ids:
    """The ids of nodes, twice."""

    given: NDArray[Any]  # [N] as they came: they go back so
    stored: NDArray[Any]  # [N] int64 or text

    @classmethod
    def of(cls, ids: Any) -> Ids | None:
        """None for none.  ids: [N] whole numbers, text, or anything else with a text of its own, such as tuples.

        Raises:
            InvalidInput: an id is missing, too long or cannot be looked up, or `ids` may be in another order.
        """
        if ids is None:
            return None
        if isinstance(ids, Mapping):
            raise InvalidInput("ids are a mapping. Give a list, one id per node in the order of the nodes.")
        if _has_own_index(ids):
            raise InvalidInput(
                "ids are a Series with an index of its own, which may not be the order of the nodes. "
                "Give ids.to_numpy() if it is."
            )
        given = ids if isinstance(ids, np.ndarray) else _sequence(ids)
        if given.ndim != 1:
            raise InvalidInput(f"ids have shape {given.shape}. Give one id per node.")
        unfit = next((at for at, value in enumerate(given.tolist()) if not isinstance(value, Hashable)), None)
        if unfit is not None:
            raise InvalidInput(
                f"ids: that of node {unfit} is a {type(given[unfit]).__name__}. Use whole numbers, text or tuples."
            )
        stored = stored_ids(given)
        row = first_long(stored) if stored.dtype.kind == "U" else None
        if row is not None:
            raise InvalidInput(f"ids: that of node {row} has more than {MAX_TEXT} characters. Shorten it.")
        return cls(given, stored)


def stored_ids(given: NDArray[Any]) -> NDArray[Any]:
    """[N] int64 where all are whole numbers of 63 bits, else text. Whole numbers may be held as floats, as pandas does.

    Raises:
        InvalidInput: an id is missing.
    """
    if given.dtype.kind in "iU":
        return given
    if given.dtype.kind == "u":  # Graph refuses those beyond 63 bits
        return given.astype(np.int64) if not len(given) or int(given.max()) <= _LARGEST else given
    missing = first_missing(given)
    if missing is not None:
        raise InvalidInput(f"ids: that of node {missing} is missing. Fill it in, or remove the node.")
    values = given.tolist()
    if values and all(map(_is_whole, values)):
        return np.array([int(value) for value in values], dtype=np.int64)
    return np.array([str(value) for value in values], dtype=np.str_)


def first_missing(given: NDArray[Any]) -> int | None:
    """Position of the first id [N] that is missing."""
    if given.dtype.kind in "iu":
        return None
    return next((at for at, value in enumerate(given.tolist()) if is_missing(value) or _is_empty(value)), None)


def _is_empty(value: Any) -> bool:
    return isinstance(value, str) and not value


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number that int64 holds; a float only where each of its neighbours is another number."""
    if isinstance(value, float | np.floating):
        return abs(float(value)) < _EXACT and float(value).is_integer()
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -_LARGEST <= int(value) <= _LARGEST


def find(stored: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Row of each wanted id, -1 where there is none. Numbers and text are compared as text."""
    wanted = stored_ids(wanted) if len(wanted) else wanted.astype(stored.dtype)
    if stored.dtype.kind != wanted.dtype.kind:  # also int64 and uint64, which numpy compares as floats
        stored, wanted = stored.astype(np.str_), wanted.astype(np.str_)
    order = np.argsort(stored, kind="stable")
    place = np.minimum(np.searchsorted(stored[order], wanted), len(stored) - 1)
    row = order[place]
    result: NDArray[np.int64] = np.where(stored[row] == wanted, row, -1).astype(np.int64)
    return result


def stored_labels(labels: Any) -> NDArray[Any]:
    """Whole numbers, -1 where there is none, or text, empty where there is none.  [N] -> [N].

    Raises:
        InvalidInput: fractions, which name no classes.
    """
    if isinstance(labels, Mapping):
        raise InvalidInput("labels are a mapping, and there is nothing to look them up by. Give one per node.")
    array = labels.detach().cpu().numpy() if hasattr(labels, "detach") else labels
    array = array if isinstance(array, np.ndarray) else _sequence(array)
    if array.dtype.kind in "biuU":
        return array
    values = [None if is_missing(value) else value for value in array.tolist()]
    present = [value for value in values if value is not None]
    if all(isinstance(value, int | float) for value in present):
        broken = next((value for value in present if not np.isfinite(value) or value != int(value)), None)
        if broken is not None:
            raise InvalidInput(f"label {broken} is not a class. Use whole numbers or text.")
        return np.array([-1 if value is None else int(value) for value in values], dtype=np.int64)
    return np.array(["" if value is None else str(value) for value in values], dtype=np.str_)


def by_id(labels: Any) -> Mapping[Any, Any] | None:
    """Labels that come with the ids of their nodes: a mapping, or a Series with an index of its own; None: in order.

    Raises:
        InvalidInput: the index has an id twice.
    """
    if isinstance(labels, Mapping):
        return labels
    if not _has_own_index(labels):
        return None
    if not labels.index.is_unique:
        again = labels.index[labels.index.duplicated()][0]
        raise InvalidInput(f"labels: the index has {again!r} twice. Give each node one label.")
    return dict(zip(labels.index.tolist(), labels.tolist(), strict=True))


def _has_own_index(values: Any) -> bool:
    """Whether it is a Series of pandas whose index is not 0, 1, 2, ..."""
    if not (hasattr(values, "iloc") and hasattr(values, "index")):
        return False
    index = np.asarray(values.index)
    return index.dtype.kind not in "iu" or not np.array_equal(index, np.arange(len(index)))


def is_missing(value: Any) -> bool:
    """None, NaN and what pandas has for them."""
    return value is None or (not isinstance(value, str) and _differs_from_itself(value))


def _differs_from_itself(value: Any) -> bool:
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA, which is neither equal nor different
        return True


def _sequence(values: Any) -> NDArray[Any]:
    """An array of what a list or a column holds; nothing is turned into text on the way."""
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    array = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):
        array[position] = value
    if all(isinstance(value, str) for value in values) or all(
        type(value) is int and _is_whole(value) for value in values
    ):
        return np.array(list(values))
    return array
