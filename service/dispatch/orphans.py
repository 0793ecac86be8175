"""Folders of jobs that were deleted by a service that was killed between the row and the files."""

from __future__ import annotations

import logging
import re
import shutil
import time
from pathlib import Path

from service.settings import Settings
from service.store import Store

LEFT_SECONDS = 3_600.0
_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{26}")  # store.records.new_id
log = logging.getLogger("service.dispatch")


def sweep_folders(settings: Settings, store: Store, *, older_than: float = LEFT_SECONDS) -> list[Path]:
    """Remove runs/<id> and jobs/<id> that no job has and nothing was put into for `older_than` seconds.

    Ids grow with time. What is older or newer than every job with a folder stays: then this database may be a new one,
    or an older copy, and would know nothing of runs that someone wants.

    Returns:
        The folders.

    Raises:
        Unavailable: the database cannot say what is needed; nothing was removed.
    """
    limit = time.time() - older_than
    folders = [*_folders(settings.runs), *_folders(settings.jobs)]  # before the rows: those are there first
    known = store.events.last_seqs(sorted({folder.name for folder in folders}))
    if not known:
        return []
    first, last = min(known), max(known)
    removed = []
    for folder in folders:
        if folder.name not in known and first < folder.name < last and _changed(folder) < limit:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    if removed:
        log.info("removed %d folders of jobs that were deleted", len(removed))
    return removed


def _folders(parent: Path) -> list[Path]:
    try:
        return [entry for entry in parent.iterdir() if _ID.fullmatch(entry.name) and not entry.is_symlink()]
    except OSError:
        return []


def _changed(folder: Path) -> float:
    """When something was last put into it; never long ago if it is going away at this moment."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return time.time()
