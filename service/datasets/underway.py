"""Uploads that are on their way, by key: how many there are, and what they take beside what is stored already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.datasets.refusal import Refused

AT_A_TIME = 4  # uploads of one key


class Arriving:
    """One upload: the bytes of its files so far, and what others of the same key have brought."""

    def __init__(self, together: list[Arriving]):
        self.bytes = 0
        self._together = together

    def of_others(self) -> int:
        """Bytes that are neither stored nor ours."""
        return sum(other.bytes for other in tuple(self._together) if other is not self)


class Underway:
    """Of one process; `enter` is called on its event loop only."""

    def __init__(self) -> None:
        self._by_owner: dict[str, list[Arriving]] = {}

    @contextmanager
    def enter(self, owner: str | None) -> Iterator[Arriving]:
        """Count an upload until it is stored or refused. Without keys there is nobody to count for.

        Raises:
            Refused: 429, the key has as many under way as it may.
        """
        if owner is None:
            yield Arriving([])
            return
        together = self._by_owner.setdefault(owner, [])
        if len(together) >= AT_A_TIME:
            raise Refused(429, "body", f"{AT_A_TIME} uploads of this key are under way; wait until one is done")
        arriving = Arriving(together)
        together.append(arriving)
        try:
            yield arriving
        finally:
            together.remove(arriving)
            if not together:
                self._by_owner.pop(owner, None)
