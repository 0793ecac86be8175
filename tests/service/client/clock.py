"""Time that passes only in pauses, so that patience costs a test nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """In place of the module `time` where the client waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
