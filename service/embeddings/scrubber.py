"""Reads every published file now and then, slowly, and marks versions whose files are damaged.

A dispatcher runs it in a thread. When a version was last found intact is the time of an empty file in its folder, so
that several dispatchers share the work and a restart does not begin anew.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from service.embeddings.integrity import find_damage
from service.embeddings.layout import read_info
from service.settings import Settings
from service.store import Store
from service.store.errors import StoreError

BYTES_PER_SECOND = 32_000_000  # so that it is not noticed beside jobs and requests
LOOK_SECONDS = 600.0  # between looks at what is due
CHECKED = ".checked"
_DAY = 86_400.0

log = logging.getLogger("service.embeddings")


class _Stopped(Exception):
    """The service stops. No OSError, such as InterruptedError is: those mean that a file cannot be read."""


class Scrubber:
    """Checks the versions of one home."""

    def __init__(self, store: Store, settings: Settings, *, bytes_per_second: float = BYTES_PER_SECOND):
        self._store, self._settings, self._rate = store, settings, bytes_per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrubber", daemon=True)

    def start(self) -> None:
        """Does nothing if `scrub_days` is 0."""
        if self._settings.scrub_days:
            self._thread.start()

    def stop(self) -> None:
        """Returns once it has ended, within a piece of a file."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def check_all(self) -> list[str]:
        """Check what is due, longest unchecked first; returns the versions that are damaged.

        Raises:
            Unavailable: the database cannot say what there is.
        """
        versions = self._store.embeddings.snapshot().versions.values()
        ready = {row.version: self._place(row.version) for row in versions if row.state == "ready"}
        limit = time.time() - self._settings.scrub_days * _DAY
        found = [(_checked(folder), version) for version, folder in ready.items()]
        damaged = []
        for _, version in sorted((at, version) for at, version in found if at is not None and at <= limit):
            if self._stop.is_set():
                break
            why = self._damage(ready[version])
            if why is not None and self._store.embeddings.damage(version, why):
                log.error("version %s is damaged: %s", version, why)
                damaged.append(version)
        return damaged

    def _place(self, version: str) -> Path:
        return self._settings.version_directory(version)

    def _damage(self, folder: Path) -> str | None:
        try:
            why = find_damage(folder, read_info(folder), pause=self._pause)
            if why is None:
                (folder / CHECKED).touch(mode=0o600)
            return why
        except _Stopped:
            return None
        except (OSError, ValueError) as error:  # deleted, or of another release: whoever opens it says more
            log.info("%s was not checked: %s", folder.name, error)
            return None

    def _pause(self, read: int) -> None:
        if self._stop.wait(read / self._rate):
            raise _Stopped

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.check_all()
            except StoreError:
                pass  # at the next look
            except Exception:
                log.exception("published files could not be checked; trying again")
            self._stop.wait(LOOK_SECONDS)


def _checked(folder: Path) -> float | None:
    """When it was found intact, 0 for never; none if it is gone."""
    try:
        return (folder / CHECKED).stat().st_mtime
    except OSError:
        return 0.0 if folder.is_dir() else None
