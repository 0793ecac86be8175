"""How much memory an import may use for its buffers, and what that buys each step."""

from __future__ import annotations

from dataclasses import dataclass

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
