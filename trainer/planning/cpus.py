"""How many CPUs there are to compute with: fewer than the machine has, where a container or an affinity says so."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cpus(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs this process may keep busy, at least one.

    A container with two CPUs on a machine of 64 sees all 64. As many threads, or trials, would be stopped by the system
    most of the time.
    """
    # only Linux knows affinities
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([own, *_quotas(proc, cgroup)]))


def _quotas(proc: Path, cgroup: Path) -> Iterator[int]:
    """CPUs, rounded up, of this process's control group and of those around it, versions 1 and 2."""
    membership = proc / "self" / "cgroup"
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):  # within a container the own path is often not visible, but the root is
            if controllers == "":
                texts = _text(cgroup / group / "cpu.max").split()
            elif "cpu" in controllers.split(","):
                folder = cgroup / "cpu" / group
                texts = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
            else:
                continue
            if len(texts) == 2 and all(text.isdigit() and int(text) > 0 for text in texts):  # else "max", or -1
                yield math.ceil(int(texts[0]) / int(texts[1]))


def _text(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""
