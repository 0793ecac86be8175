"""What /proc knows of processes: their descendants, their environment, when they started, how many ran out of memory.

Standard library only: the shim imports this.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def processes() -> dict[int, tuple[int, int, str]]:
    """Parent, group and state letter of every process."""
    found = {}
    for name in os.listdir(PROC):
        if name.isdigit():
            try:
                text = (PROC / name / "stat").read_text(errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            state, parent, group = text.rpartition(")")[2].split()[:3]  # the name before it may contain anything
            found[int(name)] = int(parent), int(group), state
    return found


def descendants(ancestor: int) -> list[tuple[int, int]]:
    """Process id and group of all descendants of a process but zombies."""
    known = processes()
    children: dict[int, list[int]] = {}
    for process, (parent, _, _) in known.items():
        children.setdefault(parent, []).append(process)
    found, ahead = [], list(children.get(ancestor, ()))
    while ahead:
        process = ahead.pop()
        ahead += children.get(process, ())
        if known[process][2] not in "ZX":
            found.append((process, known[process][1]))
    return found


def started(process: int) -> int | None:
    """When a process was started, in ticks since boot; None if there is none, or only a zombie.

    Process id and ticks together identify a process for good: ids are reused, and wall clocks jump.
    """
    try:
        fields = (PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def command_of(process: int) -> list[str]:
    """The command line of a process; empty if there is no such process."""
    try:
        return (PROC / str(process) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def has_variable(process: int, name: str, value: str) -> bool:
    """Whether a process was started with this variable; False for zombies and for processes of other users."""
    try:
        environment = (PROC / str(process) / "environ").read_bytes()
    except OSError:
        return False
    return f"{name}={value}".encode() in environment.split(b"\0")


def find_by_variable(name: str, value: str) -> list[int]:
    """All processes that were started with this variable, except this one."""
    return [process for process in processes() if process != os.getpid() and has_variable(process, name, value)]


def oom_kills(proc: Path = PROC, cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes the kernel has killed for lack of memory, in our cgroup where that is counted."""
    counts = [_count(proc / "vmstat")]
    try:
        memberships = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        memberships = []
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            counts += [_count(cgroup / path.lstrip("/") / "memory.events"), _count(cgroup / "memory.events")]
        elif "memory" in controllers.split(","):
            counts.append(_count(cgroup / "memory" / path.lstrip("/") / "memory.oom_control"))
    return sum(counts)


def _count(file: Path) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
