"""How much memory there is to plan with, and how much is in use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trainer.errors import InvalidInput

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SMALLEST, LARGEST = 10**6, 10**15  # bytes; below, a unit was forgotten, and no machine has more
USED_SHARE = 0.8  # of the limit: the rest is for the page cache, other processes, and what estimates miss


def usable_memory(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes a run may plan with: most of the machine's memory, or of the container's where that is less."""
    return int(USED_SHARE * min([_machine_memory(proc), *_cgroup_limits(proc, cgroup)]))


def parse_size(text: str) -> int:
    """Bytes of "4GB", "512 MiB" or "3e9".

    Raises:
        InvalidInput: no such size, or one that no run could have.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)(e\d{1,2})?\s*([kmgt]i?)?b?\s*", text.lower())
    size = float(found[1] + (found[2] or "")) * _UNITS[found[3] or ""] if found else 0
    if not SMALLEST <= size <= LARGEST:
        raise InvalidInput(f"{text!r} is no amount of memory for a run. Write it as 4GB, 512MB or 3GiB.")
    return int(size)


def peak_rss() -> int:
    """Most bytes this process has had resident so far. (getrusage also counts those of the process that started it.)"""
    return _kilobytes(Path("/proc/self/status"), "VmHWM") * 1024


def _machine_memory(proc: Path) -> int:
    return _kilobytes(proc / "meminfo", "MemTotal") * 1024


def _kilobytes(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{file} does not tell {name}")


def _cgroup_limits(proc: Path, cgroup: Path) -> Iterator[int]:
    """The limits of this process's control group and of those around it, versions 1 and 2.

    Within a container the group's own path is often not visible; its limit is then at the root of what is.
    """
    membership = proc / "self" / "cgroup"
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            file = root / group / name
            text = file.read_text().strip() if file.is_file() else "max"
            if text.isdigit():
                yield int(text)
