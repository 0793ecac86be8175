"""Where we are, so strictly that a process number means one process: machine, boot and process namespace.

A host name alone would not do. Two containers may have the same one, and a process of one cannot be seen by the other.
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
    """`<node>/<boot>/<namespace>`; equal to no other place where boot and namespace cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        boot, namespace = _UNKNOWN, uuid.uuid4().hex
    return f"{platform.node()}/{boot}/{namespace}"


def is_of_another_boot(one: str, other: str) -> bool:
    """Whether two places are certain to be of different boots; of one machine, only the later one can be alive."""
    boots = {_boot(one), _boot(other)}
    return len(boots) == 2 and not boots & {_UNKNOWN, ""}


def _boot(found: str) -> str:
    parts = found.rsplit("/", 2)
    return parts[1] if len(parts) == 3 else ""
