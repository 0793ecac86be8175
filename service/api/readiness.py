"""Whether what is submitted now would run: the database is whole, a dispatcher is alive, the disk takes files.

Each reason says what to do. Whether the process is alive is another question (/livez): a restart mends none of these.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
import time

import anyio
import anyio.to_thread

from service.settings import Settings
from service.store import Store
from service.store.engine import check_file
from service.store.errors import DatabaseDamaged, Unavailable
from trainer.planning.plan import size

_PATIENCE = 5.0  # seconds for all checks together
_KEPT_SECONDS = 1.0  # anyone may ask, so an answer holds for a while
_CHECK_SECONDS = 600.0  # between looks at the whole file of an SQLite database
_CHECK_PATIENCE = 1.0  # seconds for one; what takes longer is told by the next answer
_LEAST_INODES = 1_000
_RESTORE = "stop the service and restore the newest backup"


class Readiness:
    """Of one app."""

    def __init__(self, store: Store, settings: Settings):
        self._store, self._settings = store, settings
        self._found: list[str] = []
        self._until = 0.0
        self._looking = anyio.Lock()
        self._free: int | None = None
        self._free_until = 0.0
        self._damage: str | None = None
        self._check_due = 0.0

    def free_bytes(self) -> int | None:
        """What the disk has left; none: it cannot be read. May wait for the disk."""
        if time.monotonic() >= self._free_until:
            self._free_until = time.monotonic() + _KEPT_SECONDS
            self._free = _free_bytes(self._settings)
        return self._free

    def has_room(self) -> bool:
        """Whether the disk has what a job needs to leave its results. May wait for the disk."""
        free = self.free_bytes()
        return free is None or free >= self._settings.min_free_bytes

    async def reasons(self) -> list[str]:
        """Why the service is not ready, one sentence each; empty if it is."""
        async with self._looking:  # who comes meanwhile waits for what is found
            if time.monotonic() >= self._until:
                with anyio.move_on_after(_PATIENCE) as patience:
                    self._found = await anyio.to_thread.run_sync(self._look, abandon_on_cancel=True)
                if patience.cancelled_caught:
                    self._found = ["the database or the disk does not answer"]
                self._until = time.monotonic() + _KEPT_SECONDS
            return self._found

    def _look(self) -> list[str]:
        found = []
        damage = self._damage_of_database()
        try:
            if not self._store.dispatchers.alive(self._settings.lease_seconds):
                found.append("no dispatcher is running, so jobs would wait")
        except DatabaseDamaged as error:
            damage = damage or str(error)
        except Unavailable:
            found.append("the database cannot be reached")
        if damage is not None:
            found.append(f"the database is damaged ({damage}); {_RESTORE}")
        free = _free_bytes(self._settings)
        if free is None or free < self._settings.min_free_bytes:
            left = "cannot be read" if free is None else f"has {size(free)} left"
            found.append(f"the disk {left}; {size(self._settings.min_free_bytes)} are needed")
        return [*found, *_disk_troubles(self._settings)]

    def _damage_of_database(self) -> str | None:
        """What was last found wrong with the database's file; looks anew now and then, for a moment or in a thread."""
        if time.monotonic() >= self._check_due:
            self._check_due = time.monotonic() + _CHECK_SECONDS
            check = threading.Thread(target=self._check_database, daemon=True)
            check.start()
            check.join(_CHECK_PATIENCE)
        return self._damage

    def _check_database(self) -> None:
        try:
            check_file(self._store.database)
            self._damage = None
        except DatabaseDamaged as error:
            self._damage = str(error)
        except Unavailable:
            pass  # which the other check tells


def _disk_troubles(settings: Settings) -> list[str]:
    """Why no file can be made in the home, found by making one."""
    place = settings.home / f".ready-{secrets.token_hex(8)}"
    found = []
    try:
        inodes = os.statvfs(settings.home)
        if inodes.f_files and inodes.f_favail < _LEAST_INODES:  # some file systems have no fixed number of them
            left = f"the disk has {inodes.f_favail} inodes left, one for each file, and {_LEAST_INODES:,} are needed"
            found.append(f"{left}; delete jobs, data sets or versions")
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"ready?")
        finally:
            os.close(descriptor)
            place.unlink()
    except OSError as error:
        if error.errno == errno.EROFS:
            found.append("the disk is read-only; see the machine's log for its errors, and mount it writable again")
        elif error.errno in (errno.EACCES, errno.EPERM):
            found.append("the service may not write to NML_HOME; give that folder to the user it runs as")
        elif error.errno not in (errno.ENOSPC, errno.EDQUOT) or not found:
            found.append(f"the disk takes no files ({error.strerror}); see the machine's log, or free some space")
    return found


def _free_bytes(settings: Settings) -> int | None:
    try:
        return shutil.disk_usage(settings.home).free
    except OSError:
        return None
