"""How much memory an import may use for its buffers, what that buys each step, and how much it may write."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import InvalidInput

MEMORY = 256 << 20  # bytes
LEAST_MEMORY = 64 << 20  # below, what pyarrow holds for itself is the larger part
BLOCK_SHARE = 32  # a block of text is about ten times as large while it is parsed, looked up and spread
ENTRY_BYTES = 96  # an edge while its bucket is sorted: key, weight, order, copies


@dataclass(frozen=True)
class Budget:
    """Sizes that bound memory but change no result. Beside them stand 16 to 40 bytes per node for looking up ids."""

    block_bytes: int = MEMORY // BLOCK_SHARE  # of a table, read at a time
    sort_edges: int = MEMORY // ENTRY_BYTES  # sorted at a time

    @classmethod
    def of(cls, memory: int) -> Budget:
        """Shares of `memory` bytes."""
        return cls(memory // BLOCK_SHARE, memory // ENTRY_BYTES)


@dataclass(frozen=True)
class DiskLimit:
    """What an import may write; asked block by block, because a small file may unpack to any size.

    Args:
        max_bytes: of the graph; while it is made, it may take twice as much. None: any.
        min_free: bytes of the disk that must stay free.
    """

    max_bytes: int | None = None
    min_free: int = 0

    def check(self, directory: Path) -> None:
        """Raises InvalidInput if what has been written to `directory` is too much; trying again would not help."""
        if self.max_bytes is not None and _size(directory) > 2 * self.max_bytes:
            raise self._too_large()
        if shutil.disk_usage(directory).free < self.min_free:
            raise no_room()

    def check_complete(self, directory: Path) -> None:
        """The same for a graph that is complete."""
        if self.max_bytes is not None and _size(directory) > self.max_bytes:
            raise self._too_large()

    def _too_large(self) -> InvalidInput:
        return InvalidInput(
            f"the graph takes more than the {self.max_bytes:,} bytes that may still be stored. "
            "Give fewer or sparser features, or delete other data sets first."
        )


def no_room() -> InvalidInput:
    """Final, unlike other failures of a disk: the next attempt would fill it again."""
    return InvalidInput("the disk has no room for the graph. Free some space, then import it again.")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
