"""Several API processes behind one socket count together, so that each of them tells Prometheus about all.

The supervisor makes a folder (`shared_folder`); each process keeps its counters there in files of its slot, which
prometheus_client maps into memory, and reads those of all slots when it is asked. Whoever takes the slot of a process
that died goes on with its counters: none of them ever falls back, and there are never more files than slots.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # by which prometheus_client knows the folder
# More than every route, method and kind of status together need: see the test. A file that had to grow on a full disk
# would end the process with SIGBUS, so its room is taken at the start.
_BYTES = {"histogram": 4 << 20, "counter": 1 << 16, "gauge_livesum": 1 << 16}
_PID_BYTES = 16
_PREFIX = "nml-counts-"
_SETTLED_SECONDS = 60.0  # younger folders may not be locked yet
log = logging.getLogger("service")


@contextmanager
def shared_folder(slots: int) -> Iterator[Path | None]:
    """A folder for slots 1 … `slots`, removed at the end; none where there is no room: then each counts for itself."""
    made, lock = None, None
    try:
        place = Path(tempfile.gettempdir())
        _remove_orphans(place)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_SH)  # ours for as long as we live, also for those who tidy temporary folders
        for slot in range(1, slots + 1):
            for kind, size in _BYTES.items():
                _reserve(made / f"{kind}_{slot}.db", size)
            _reserve(made / f"{slot}.pid", _PID_BYTES)
    except OSError as error:
        log.warning("each API process counts for itself in /metrics: no room to share (%s)", error)
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        made = None
    try:
        yield made
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def join(folder: Path, slot: int) -> bool:
    """Have this process keep its counters in the folder from now on. Before any is made, and once per process.

    Returns:
        Whether it does; if not, somebody has tidied the folder away.
    """
    from prometheus_client import values

    try:
        with (folder / f"{slot}.pid").open("r+b") as file:
            file.write(str(os.getpid()).encode().ljust(_PID_BYTES))
        if not all((folder / f"{kind}_{slot}.db").exists() for kind in _BYTES):
            return False
    except OSError:
        return False
    os.environ[FOLDER_VARIABLE] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: slot)
    return True


def pids(folder: Path) -> dict[str, int]:
    """The processes that joined, by slot; one that died is among them until another takes its slot."""
    found = {}
    for file in sorted(folder.glob("*.pid")):
        with suppress(OSError, ValueError):  # nobody has written it yet
            found[file.stem] = int(file.read_text(encoding="ascii"))
    return found


def _reserve(file: Path, size: int) -> None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _remove_orphans(place: Path) -> None:
    """Folders that a supervisor left when it was killed: nobody holds their lock."""
    for folder in place.glob(_PREFIX + "*"):
        with suppress(OSError):
            about = folder.lstat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _SETTLED_SECONDS:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
