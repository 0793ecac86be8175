"""Requests for more than the service takes at a time: sent in batches, limited by count and by bytes.

The limits depend on the service's settings and on the dimension of a version, so the service has the last word: a batch
that it refuses as too large is halved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from service.client._errors import ApiError

if TYPE_CHECKING:
    import numpy as np

PART_BYTES = 1_900_000  # of items in a JSON body; that of a lookup may have 2,000,000, and there is more in it
_NUMBER_BYTES = 25  # of a float32 in JSON; "-3.2008762202575766e-37, " is one of the longest
_encoder = json.JSONEncoder(ensure_ascii=False)


def ask_in_parts(
    items: Any,
    most: int,
    ask: Callable[[Any], httpx.Response],
    *,
    sizes: Sequence[int] | None = None,
    limits: Collection[str] = (),
) -> Iterator[tuple[int, httpx.Response]]:
    """Answers to parts of `items` in turn, each with the place of its first item.

    Without items, one empty batch is sent, so that the service validates the rest of the request.

    Args:
        items: a list, or a matrix with a row each.
        most: items in a part.
        ask: sends one part.
        sizes: bytes of each item; no part has more than PART_BYTES of them, unless a single item has. None: any.
        limits: fields that a refusal (422) names where question or answer would be too large.

    Raises:
        ApiError: a part was refused for another reason, or is a single item.
    """
    start = 0
    while True:
        part = items[start : start + _fitting(sizes, start, most)]
        try:
            answer = ask(part)
        except ApiError as error:
            if len(part) < 2 or not _is_too_large(error, limits):
                raise
            most = len(part) // 2  # for the parts that follow, too: they are mostly alike
            continue
        yield start, answer
        start += len(part)
        if start >= len(items):
            return


def id_sizes(nodes: Sequence[int | str]) -> list[int]:
    """Bytes of each node id in a JSON list."""
    texts = (str(node) if isinstance(node, int) else _encoder.encode(node) for node in nodes)
    return [len(text.encode()) + 2 for text in texts]  # ", " between two


def row_sizes(vectors: np.ndarray[Any, Any]) -> list[int]:
    """Bytes that each row of a matrix may have in JSON."""
    count, dim = vectors.shape
    return [_NUMBER_BYTES * dim] * count


def _fitting(sizes: Sequence[int] | None, start: int, most: int) -> int:
    """How many items from `start` on make a part: at most `most`, at least one."""
    if sizes is None:
        return most
    count = total = 0
    for size in sizes[start : start + most]:
        total += size
        if count and total > PART_BYTES:
            return count
        count += 1
    return max(1, count)


def _is_too_large(error: ApiError, limits: Collection[str]) -> bool:
    if error.status == httpx.codes.UNPROCESSABLE_ENTITY:
        return any(entry.get("field") in limits for entry in error.errors)
    return error.status == httpx.codes.REQUEST_ENTITY_TOO_LARGE
