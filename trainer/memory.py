"""How much memory there is to plan with, and how much is in use."""

from __future__ import annotations

import re
import resource
from pathlib import Path

from trainer.errors import InvalidInput

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),  # cgroup v2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # v1
)
USED_SHARE = 0.8  # of the limit: the rest is for the page cache, other processes, and what estimates miss


def usable_memory() -> int:
    """Bytes a run may plan with: most of the machine's memory, or of the container's where that is less."""
    limits = [_machine_memory()]
    for file in _CGROUP_LIMITS:
        text = file.read_text().strip() if file.is_file() else "max"
        if text.isdigit():
            limits.append(int(text))
    return int(USED_SHARE * min(limits))


def parse_size(text: str) -> int:
    """Bytes of "4GB", "512 MiB" or "3e9".

    Raises:
        InvalidInput: no such size.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    try:
        size = float(found[1]) * _UNITS[found[2] or ""] if found else 0
    except ValueError:
        size = 0
    if size < 1:
        raise InvalidInput(f"{text!r} is no amount of memory. Write it as 4GB, 512MB or 3GiB.")
    return int(size)


def peak_rss() -> int:
    """Most bytes this process has had resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _machine_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not tell the machine's memory")
