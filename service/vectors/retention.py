"""Versions and their files on the way out: those that the rules of retention no longer keep, and what deleting left.

Files are only removed for versions that this database has deleted (it remembers them for a month), never because it
does not know them: that may be another database. Temporary folders of builds are worth nothing, and are removed once
nobody can be writing to them.
"""

from __future__ import annotations

import contextlib
import re
import time
from functools import partial

from service.discarded import discard, sweep_discarded
from service.settings import Settings
from service.store import Store
from service.store.errors import InUse, NotFound
from service.store.records import Embedding

LEFT_SECONDS = 3_600.0  # after which a temporary folder that nobody publishes to was left by a killed process
_DAY = 86_400.0
_TEMPORARY = re.compile(r"\.([0-9a-z]{1,32})\.[^.]+\.tmp")


def remove_version(version: str, store: Store, settings: Settings) -> Embedding:
    """Delete a version and its files; who reads them at this moment can go on.

    Raises:
        NotFound, InUse, Unavailable: as Embeddings.delete.
    """
    embedding = store.embeddings.delete(version)
    _remove_files(version, store, settings)
    return embedding


def retire(store: Store, settings: Settings) -> list[str]:
    """Delete what `retain_versions` and `retain_days` no longer keep; returns the versions."""
    keep, seconds = settings.retain_versions, settings.retain_days * _DAY
    if not keep and not seconds:
        return []
    retired = []
    for version in store.embeddings.expired(keep=keep, seconds=seconds):
        with contextlib.suppress(NotFound, InUse):  # something has changed since
            remove_version(version, store, settings)
            retired.append(version)
    return retired


def sweep_versions(store: Store, settings: Settings, *, older_than: float = LEFT_SECONDS) -> None:
    """Retire versions, and remove what processes that were killed have left.

    Raises:
        OSError: the folder cannot be read.
        Unavailable: the database cannot say what was deleted.
    """
    retire(store, settings)
    if not settings.embeddings.is_dir():
        return
    sweep_discarded(settings.embeddings)
    for version in store.embeddings.deleted():
        if settings.version_directory(version).exists():
            _remove_files(version, store, settings)
    limit = time.time() - older_than
    publishing = {embedding.version for embedding in store.embeddings.unfinished()}
    for folder in settings.embeddings.iterdir():
        match = _TEMPORARY.fullmatch(folder.name)
        with contextlib.suppress(FileNotFoundError):  # completed, or removed, in this very moment
            if match and match[1] not in publishing and folder.stat().st_mtime < limit:
                discard(folder)


def _remove_files(version: str, store: Store, settings: Settings) -> None:
    store.embeddings.remove_files(version, partial(discard, settings.version_directory(version)))
