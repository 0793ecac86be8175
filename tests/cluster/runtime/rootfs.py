"""A container's file system out of this machine's: all of it to read, and nothing to write but what compose says.

The new root is an empty tmpfs into which every entry of / is bound, so Python and the project are where they are
outside. On top come what an image has of its own (/opt/nml, /etc/hosts, /etc/passwd), the volumes, and a fresh /proc,
/dev, /run and /tmp. Runs in a mount namespace of its own, as root, before the program does.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from tests.cluster.runtime import syscalls as sys_

GUARDED = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC  # as Docker mounts what is no volume
FRESH = ("/proc", "/sys", "/dev", "/run", "/tmp")  # an image has its own
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
ROOT = Path("/")


def enter_root(spec: dict[str, Any]) -> None:
    """Compose the root and make it ours. `spec`: scratch, places, needed, tmpfs, shm_bytes (container.py)."""
    new = Path(spec["scratch"])
    sys_.mount("none", "/", flags=sys_.MS_REC | sys_.MS_PRIVATE)
    _tmpfs(new)
    _show_all(ROOT, new, but=FRESH)
    for name in FRESH:
        (new / name[1:]).mkdir()
    opened: set[Path] = set()
    for path in spec["needed"]:
        _open_the_way(Path(path), new, opened)
    rebuilt = {Path(name) for name in FRESH}
    for place in spec["places"]:
        _make_place(place["target"], new, rebuilt, is_file=Path(place["source"]).is_file())
    for target in spec["tmpfs"]:
        _make_place(target, new, rebuilt, is_file=False)
    (new / ".old").mkdir()
    sys_.make_read_only(str(new))

    _own_devices(new, spec["shm_bytes"])
    sys_.mount("proc", str(new / "proc"), "proc", GUARDED)
    sys_.mount("sysfs", str(new / "sys"), "sysfs", GUARDED)
    if Path("/sys/fs/cgroup").is_dir():
        _bind("/sys/fs/cgroup", new / "sys/fs/cgroup")
    sys_.make_read_only(str(new / "sys"))
    for target, options in spec["tmpfs"].items():
        sys_.mount("tmpfs", str(new / target[1:]), "tmpfs", GUARDED, options)
    for path in spec["needed"]:
        if any(Path(path).is_relative_to(target) for target in spec["tmpfs"]):
            _bind(path, _made(new / path[1:], is_file=False), read_only=True)
    for place in spec["places"]:
        _bind(place["source"], new / place["target"].lstrip("/"), read_only=place["read_only"])

    sys_.pivot_root(str(new), str(new / ".old"))
    os.chdir("/")
    sys_.detach("/.old")


def _show_all(folder: Path, at: Path, but: tuple[str, ...] = ()) -> None:
    """Bind every entry of a folder of this machine below `at`, an empty folder that can be written."""
    for entry in folder.iterdir():
        target = at / entry.name
        if str(entry) in but:
            continue
        if entry.is_symlink():
            target.symlink_to(os.readlink(entry))
        elif entry.is_dir() or entry.is_file():
            _bind(str(entry), _made(target, is_file=entry.is_file()))


def _open_the_way(path: Path, new: Path, opened: set[Path]) -> None:
    """Where a folder above `path` is closed to others, put an open one in its place that holds nothing but the path.

    A /root of mode 700 with the interpreter in it is the common case: in an image it would lie in an open place.
    """
    for parent in reversed(path.parents):
        if str(parent) in FRESH:
            return
        place = new / str(parent)[1:]
        if parent not in opened and not parent.stat().st_mode & stat.S_IXOTH:
            _tmpfs(place)
            opened.add(parent)
        if parent in opened:
            _bind(str(path), _made(place / path.relative_to(parent), is_file=False))
            return


def _make_place(target: str, new: Path, rebuilt: set[Path], *, is_file: bool) -> None:
    """Something to mount on at `target`; the folder above it is rebuilt if it is this machine's own."""
    place = new / target.lstrip("/")
    if place.exists():
        return
    above = next(parent for parent in Path(target).parents if (new / str(parent)[1:]).exists())
    if not any(parent in rebuilt for parent in (above, *above.parents) if parent != ROOT) and above != ROOT:
        _tmpfs(new / str(above)[1:])
        _show_all(above, new / str(above)[1:])
        rebuilt.add(above)
    _made(place, is_file=is_file)


def _own_devices(new: Path, shm_bytes: int) -> None:
    devices = new / "dev"
    _tmpfs(devices, 0o755)
    for name in DEVICES:
        _bind(f"/dev/{name}", _made(devices / name, is_file=True))
    for name, leads in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        (devices / name).symlink_to(f"/proc/self/{leads}")
    sys_.mount("tmpfs", str(_made(devices / "shm", is_file=False)), "tmpfs", GUARDED, f"size={shm_bytes},mode=1777")


def _made(place: Path, *, is_file: bool) -> Path:
    (place.parent if is_file else place).mkdir(parents=True, exist_ok=True)
    if is_file:
        place.touch()
    return place


def _bind(source: str, target: Path, *, read_only: bool = False) -> None:
    sys_.mount(source, str(target), flags=sys_.MS_BIND | sys_.MS_REC)
    if read_only:
        sys_.make_read_only(str(target))


def _tmpfs(target: Path, mode: int = 0o755) -> None:
    sys_.mount("tmpfs", str(target), "tmpfs", 0, f"mode={mode:o}")
