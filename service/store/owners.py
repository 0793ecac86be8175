"""Who may change what a key has made. The store checks it, within the transaction that makes the change."""

from __future__ import annotations

from collections.abc import Callable

MayChange = Callable[[str | None], bool]  # whether the caller may change what this owner has made


def anyone(owner: str | None) -> bool:
    return True
