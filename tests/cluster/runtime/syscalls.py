"""The few system calls that Python 3.11 has no name for. Linux, 64 bits."""

from __future__ import annotations

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000,
)  # fmt: skip
PR_SET_PDEATHSIG = 1
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1  # one number on all machines
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "none", flags: int = 0, options: str = "") -> None:
    _checked(
        _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()),
        f"mount {source} on {target}",
    )


def detach(target: str) -> None:
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """A mount and all below it."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _checked(
        _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, ctypes.byref(attributes), size),
        f"mount_setattr {target}",
    )


def pivot_root(new: str, old: str) -> None:
    _checked(_libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], new.encode(), old.encode()), f"pivot_root {new}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    _checked(_libc.setns(descriptor, kind), "setns")


def set_hostname(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name.encode())), "sethostname")


def signal_when_parent_dies(number: int) -> None:
    _checked(_libc.prctl(PR_SET_PDEATHSIG, number), "prctl")


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
