"""Identifies the machine, its boot and the process namespace, so that within a host id a pid means one process.

A host name is not enough: two containers may have the same one, and neither sees the other's processes.
"""

from __future__ import annotations

import functools
import os
import platform
import uuid
from pathlib import Path

_UNKNOWN = "?"


@functools.cache
def host_id() -> str:
    """`<node>/<boot>/<namespace>`; unique to this process where boot and namespace are unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        boot, namespace = _UNKNOWN, uuid.uuid4().hex
    return f"{platform.node()}/{boot}/{namespace}"


def is_of_another_boot(one: str, other: str) -> bool:
    """Whether two host ids are certainly of different boots; on one machine only the later boot can have processes."""
    boots = {_boot(one), _boot(other)}
    return len(boots) == 2 and not boots & {_UNKNOWN, ""}


def _boot(found: str) -> str:
    parts = found.rsplit("/", 2)
    return parts[1] if len(parts) == 3 else ""
