"""Uploaded files on disk, from their first byte until they are imported: uploads/<id>/{graph.npz, nodes.csv, …}.

A folder belongs to the request that fills it, then to the import job whose spec names it, and is removed by whoever
ends that; `sweep_uploads` removes what a killed process left behind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from service.datasets.identity import StoredPart
from service.datasets.refusal import Refused
from service.discarded import sweep_discarded
from service.settings import Settings
from service.store import Store
from service.store.records import ACTIVE
from trainer.files.atomic import sync

LEFT_SECONDS = 86_400.0  # after which a folder that nobody writes to and no import needs was left by a killed process
_ID = re.compile(r"[0-9a-f]{32}")
_BUFFER = 1 << 20


class Upload:
    """A folder that is being filled. `discard` it unless an import job has taken it over."""

    def __init__(self, settings: Settings):
        self.id = secrets.token_hex(16)
        self.folder = settings.uploads / self.id
        self.parts: dict[str, StoredPart] = {}
        self._settings = settings
        self._open: PartFile | None = None
        with disk_errors():
            self.folder.mkdir(parents=True, mode=0o700)

    def open(self, field: str, file: str) -> PartFile:
        """A new part to write; one at a time."""
        with disk_errors():
            self._open = PartFile(field, self.folder / file)
        return self._open

    def close(self, part: PartFile) -> None:
        """The part is complete, and will be there after a power cut."""
        with disk_errors():
            self.parts[part.field] = part.finish()
        self._open = None

    def settle(self) -> None:
        """All parts are there for good."""
        with disk_errors():
            sync(self.folder)
            sync(self.folder.parent)

    def discard(self) -> None:
        """Remove it."""
        if self._open is not None:
            self._open.abandon()
        discard(self._settings, self.id)


class PartFile:
    """One file of an upload, hashed as it is written."""

    def __init__(self, field: str, path: Path):
        self.field = field
        self._path = path
        self._digest = hashlib.sha256()
        self._size = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=_BUFFER)

    def write(self, data: memoryview) -> None:
        with disk_errors():
            self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def finish(self) -> StoredPart:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return StoredPart(self.field, self._path.name, self._digest.hexdigest(), self._size)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """A full disk becomes a refusal with 507; other errors stay what they are."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_room() from None
        raise


def no_room() -> Refused:
    return Refused(507, "body", "the disk of this service is almost full; try again when something has been deleted")


def check_room(settings: Settings, *, needed: int = 0) -> None:
    """Refuse an upload that would leave the disk with less than `min_free_bytes`.

    Args:
        needed: bytes that are still to come, as far as known.

    Raises:
        Refused: 507.
    """
    place = settings.uploads if settings.uploads.is_dir() else settings.home
    try:
        free = shutil.disk_usage(place).free
    except FileNotFoundError:  # nothing was ever stored here
        return
    if free - needed < settings.min_free_bytes:
        raise no_room()


def discard(settings: Settings, upload_id: str) -> None:
    """Remove an upload's files. Does nothing if they are gone, so it may be called again."""
    if not _ID.fullmatch(upload_id):
        raise ValueError(f"{upload_id!r} is no upload")
    shutil.rmtree(settings.uploads / upload_id, ignore_errors=True)


def sweep_uploads(
    settings: Settings, store: Store, *, older_than: float = LEFT_SECONDS, now: float | None = None
) -> list[str]:
    """Remove uploads that nothing has written to for `older_than` seconds and no unfinished import needs.

    Also what is left of graphs that were being deleted.

    Args:
        now: seconds since 1970; none: what the clock says.

    Returns:
        The ids of the uploads.

    Raises:
        Unavailable: the database cannot say what is needed; nothing was removed.
    """
    sweep_discarded(settings.graphs)
    limit = (time.time() if now is None else now) - older_than
    old = [entry.name for entry in _folders(settings) if _last_written(entry) < limit]
    if not old:
        return []
    needed = set(_needed(store))
    removed = [upload for upload in old if upload not in needed]
    for upload in removed:
        discard(settings, upload)
    return removed


def _folders(settings: Settings) -> list[Path]:
    try:
        return [entry for entry in settings.uploads.iterdir() if _ID.fullmatch(entry.name)]
    except FileNotFoundError:
        return []


def _last_written(folder: Path) -> float:
    """Newest change of the folder or a file in it; never old if it is going away at this moment."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:
        return time.time()


def _needed(store: Store) -> Iterator[str]:
    before: str | None = None
    while True:
        jobs, before = store.jobs.list(kind="import", states=ACTIVE, before=before, limit=500)
        for job in jobs:
            whole = store.jobs.get(job.id)  # in a list they come without their specs
            if whole is not None:
                yield str(whole.spec.get("upload"))
        if before is None:
            return
