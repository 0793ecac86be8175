"""Seconds of alternatives taken in turns, and the peak of a process's memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path


def interleaved(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taken in turns so that a noisy neighbour disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for candidate in candidates.values():
        candidate()
    for _ in range(repeats):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_above(go: Callable[[], object]) -> int:
    """Bytes of resident memory above those at the start while `go` runs (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    go()
    return max(_status("VmHWM") - before, 1)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{key} is not in /proc/self/status")
