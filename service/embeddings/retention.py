"""Versions and their files on the way out: those that the rules of retention no longer keep, and what deleting left.

Files are only removed for versions that this database has deleted (it remembers them for a month), never because it
does not know them: that may be another database. Temporary folders and files of builds are worth nothing, and are
removed once nobody can be writing to them. The jobs that published or indexed a version go with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from service.discarded import discard, remove, set_aside, sweep_discarded
from service.settings import Settings
from service.store import Store
from service.store.errors import InUse, NotFound
from service.store.records import VERSION, Embedding

LEFT_SECONDS = 3_600.0  # after which what nobody publishes or indexes to was left by a killed process
FORGOTTEN_AT_ONCE = 500  # jobs of deleted versions, by a sweep
_DAY = 86_400.0
_TEMPORARY = re.compile(r"\.([0-9a-z]{1,32})\.[0-9a-f]{12}")  # trainer.files.whole_directory


def remove_version(version: str, store: Store, settings: Settings) -> Embedding:
    """Delete a version and its files; who reads them at this moment can go on.

    Raises:
        NotFound, InUse, Unavailable: as Embeddings.delete.
    """
    embedding = store.embeddings.delete(version)
    _remove_files(version, store, settings)
    _forget_jobs([embedding.job_id, *(str(entry.get("job")) for entry in embedding.indexes.values())], store, settings)
    return embedding


def retire(store: Store, settings: Settings, *, by_age: bool = True, now: float | None = None) -> list[str]:
    """Delete what `retain_versions` and `retain_days` no longer keep; returns the versions.

    Args:
        by_age: apply `retain_days` too.
        now: seconds since 1970; none: what the clock says.
    """
    keep, seconds = settings.retain_versions, settings.retain_days * _DAY if by_age else 0.0
    if not keep and not seconds:
        return []
    retired = []
    for version in store.embeddings.expired(keep=keep, seconds=seconds, at=now):
        with contextlib.suppress(NotFound, InUse):  # something has changed since
            remove_version(version, store, settings)
            retired.append(version)
    return retired


def sweep_versions(
    store: Store, settings: Settings, *, older_than: float = LEFT_SECONDS, now: float | None = None
) -> None:
    """Retire versions, and remove what processes that were killed have left.

    Args:
        now: seconds since 1970; none: what the clock says.

    Raises:
        OSError: the folder cannot be read.
        Unavailable: the database cannot say what was deleted.
    """
    retire(store, settings, now=now)
    if not settings.embeddings.is_dir():
        return
    sweep_discarded(settings.embeddings)
    for version in store.embeddings.deleted():
        if settings.version_directory(version).exists():
            _remove_files(version, store, settings)
    _forget_jobs(store.embeddings.jobs_of_deleted(FORGOTTEN_AT_ONCE), store, settings)
    limit = (time.time() if now is None else now) - older_than
    unfinished = {embedding.version for embedding in store.embeddings.unfinished()}
    for folder in settings.embeddings.iterdir():
        match = _TEMPORARY.fullmatch(folder.name)
        with contextlib.suppress(FileNotFoundError):  # completed, or removed, in this very moment
            if match and match[1] not in unfinished and folder.stat().st_mtime < limit:
                discard(folder)
            elif VERSION.fullmatch(folder.name) and folder.name not in unfinished:
                _remove_temporary_files(folder, limit)


def _remove_temporary_files(folder: Path, limit: float) -> None:
    """Remove what a killed builder of an index or of a Parquet file has left of it, last written before `limit`."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):  # gone in this very moment, or locked: someone is writing to it
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_mtime < limit:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(path.stat(), os.fstat(descriptor)):  # not completed and begun anew meanwhile
                        path.unlink()
            finally:
                os.close(descriptor)


def _remove_files(version: str, store: Store, settings: Settings) -> None:
    aside: list[Path | None] = []
    store.embeddings.remove_files(version, lambda: aside.append(set_aside(settings.version_directory(version))))
    for folder in aside:  # after the transaction, in which others would wait for gigabytes to be removed
        remove(folder)


def _forget_jobs(job_ids: Iterable[str], store: Store, settings: Settings) -> None:
    """Delete those that have ended. Folders first: if we are killed in between, a sweep finds the rest by the rows."""
    for job_id in job_ids:
        job = store.jobs.get(job_id)
        if job is not None and job.is_terminal:
            discard(settings.job_directory(job_id))
            with contextlib.suppress(NotFound):  # someone else did it
                store.jobs.delete(job_id)
