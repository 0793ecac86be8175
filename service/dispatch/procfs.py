"""Processes as /proc tells of them: who descends from whom, who carries a mark, how many the kernel ended.

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
                continue  # ended meanwhile
            state, parent, group = text.rpartition(")")[2].split()[:3]  # the name before may hold anything
            found[int(name)] = int(parent), int(group), state
    return found


def descendants(ancestor: int) -> list[tuple[int, int]]:
    """Process and group of all that descend from a process and are not zombies."""
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
    """When a process was started, in the kernel's ticks since boot; None if there is none, or only a zombie.

    Process and tick together name a process for good: ids are used again, and clocks that people read jump.
    """
    try:
        fields = (PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def command_of(process: int) -> list[str]:
    """Its command line; empty if there is none."""
    try:
        return (PROC / str(process) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def has_variable(process: int, name: str, value: str) -> bool:
    """Whether a process was started with this variable in its environment; no for zombies and other people's."""
    try:
        environment = (PROC / str(process) / "environ").read_bytes()
    except OSError:
        return False
    return f"{name}={value}".encode() in environment.split(b"\0")


def find_by_variable(name: str, value: str) -> list[int]:
    """All processes that carry it, but for ourselves."""
    return [process for process in processes() if process != os.getpid() and has_variable(process, name, value)]


def oom_kills(proc: Path = PROC, cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes the kernel has ended for lack of memory, in our group where that is counted."""
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
