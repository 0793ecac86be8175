"""Uploads that are on their way, by key: how many there are, and what they take beside what is stored already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.datasets.refusal import Refused

MAX_PER_KEY = 4  # uploads of one key


class UploadInProgress:
    """One upload: the bytes of its files so far, and what others of the same key have brought."""

    def __init__(self, together: list[UploadInProgress]):
        self.bytes = 0
        self._together = together

    def bytes_of_others(self) -> int:
        """Bytes that are neither stored nor ours."""
        return sum(other.bytes for other in tuple(self._together) if other is not self)


class UploadsInProgress:
    """Of one process; `enter` is called on its event loop only."""

    def __init__(self) -> None:
        self._by_owner: dict[str, list[UploadInProgress]] = {}

    @contextmanager
    def enter(self, owner: str | None) -> Iterator[UploadInProgress]:
        """Count an upload until it is stored or refused. Without keys there is nobody to count for.

        Raises:
            Refused: 429, the key has as many under way as it may.
        """
        if owner is None:
            yield UploadInProgress([])
            return
        together = self._by_owner.setdefault(owner, [])
        if len(together) >= MAX_PER_KEY:
            raise Refused(429, "body", f"{MAX_PER_KEY} uploads of this key are under way; wait until one is done")
        progress = UploadInProgress(together)
        together.append(progress)
        try:
            yield progress
        finally:
            together.remove(progress)
            if not together:
                self._by_owner.pop(owner, None)
