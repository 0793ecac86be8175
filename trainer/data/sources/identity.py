"""Ids and labels as libraries hold them, as the whole numbers or text that a graph and its files hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.sources.labels import MAX_TEXT, first_long
from trainer.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Ids:
    """The ids of nodes, twice."""

    given: NDArray[Any]  # [N] as they came: they go back so
    stored: NDArray[Any]  # [N] int64 or text

    @classmethod
    def of(cls, ids: Any) -> Ids | None:
        """None for none.  ids: [N] whole numbers, text, or anything else with a text of its own, such as tuples.

        Raises:
            InvalidInput: an id is missing or too long, or two have the same text.
        """
        if ids is None:
            return None
        given = ids if isinstance(ids, np.ndarray) else _sequence(ids)
        if given.ndim != 1:
            raise InvalidInput(f"ids have shape {given.shape}. Give one id per node.")
        stored = stored_ids(given)
        row = first_long(stored) if stored.dtype.kind == "U" else None
        if row is not None:
            raise InvalidInput(f"ids: that of node {row} has more than {MAX_TEXT} characters. Shorten it.")
        return cls(given, stored)


def stored_ids(given: NDArray[Any]) -> NDArray[Any]:
    """[N] int64 where all are whole numbers of 63 bits, else text.

    Raises:
        InvalidInput: an id is missing.
    """
    if given.dtype.kind in "iuU":
        return given  # Graph refuses those beyond 63 bits
    values = given.tolist()
    missing = next((at for at, value in enumerate(values) if is_missing(value) or value == ""), None)
    if missing is not None:
        raise InvalidInput(f"ids: that of node {missing} is missing. Fill it in, or remove the node.")
    if values and all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return np.array(values)
    return np.array([str(value) for value in values], dtype=np.str_)


def find(stored: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Row of each wanted id, -1 where there is none. Numbers and text are compared as text."""
    wanted = stored_ids(wanted) if len(wanted) else wanted.astype(stored.dtype)
    if (stored.dtype.kind == "U") != (wanted.dtype.kind == "U"):
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
    array = labels.detach().cpu().numpy() if hasattr(labels, "detach") else labels
    array = array if isinstance(array, np.ndarray) else _sequence(array)
    if array.dtype.kind in "biuU":
        return array
    values = [None if is_missing(value) else value for value in array.tolist()]
    present = [value for value in values if value is not None]
    if all(isinstance(value, int | float) for value in present):
        broken = next((value for value in present if value != int(value)), None)
        if broken is not None:
            raise InvalidInput(f"label {broken} is not a class. Use whole numbers or text.")
        return np.array([-1 if value is None else int(value) for value in values], dtype=np.int64)
    return np.array(["" if value is None else str(value) for value in values], dtype=np.str_)


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
    if all(isinstance(value, str) for value in values) or all(type(value) is int for value in values):
        return np.array(list(values))
    return array
