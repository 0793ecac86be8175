"""Every data set that a job can name, in one list: built in, public, imported on the command line, uploaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from service.datasets.documents import known, uploaded
from service.datasets.identity import split_ref
from service.datasets.imports import ABOUT, settled
from service.discarded import discard
from service.settings import Settings
from service.store import Store
from service.store.errors import InUse, NotFound
from service.store.records import Dataset
from trainer.data.datasets import DatasetInfo, imported_directory, imported_info, imported_names, known_everywhere

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # as data.imported


class Page(NamedTuple):
    """Documents, and the cursor of the next page, None on the last."""

    items: list[dict[str, Any]]
    next: str | None


class Protected(Exception):
    """Not the service's to delete, with a sentence that says whose it is."""


def page(store: Store, settings: Settings, *, cursor: str | None, limit: int) -> Page:
    """At most `limit` data sets: those that are always there, then imported ones by name, then uploaded ones by ref.

    Raises:
        ValueError: that is no cursor of ours.
    """
    section, after = _read_cursor(cursor)
    found: list[dict[str, Any]] = []
    if section == "known":
        home, start = settings.home, int(after or 0)
        always = [info for info in known_everywhere(home) if info.kind != "files"]  # a client's files are uploaded
        there: list[DatasetInfo | str] = [*always, *_imported_alone(home)]
        for one in there[start : start + limit]:
            found.append(known(imported_info(one, home) if isinstance(one, str) else one, home=home))
        if start + limit < len(there):
            return Page(found, f"known:{start + limit}")
        after = None
    rows, following = store.datasets.list(after=after, limit=max(1, limit - len(found)))
    if len(found) == limit:
        return Page(found, "uploaded:" if rows else None)
    return Page(found + [uploaded(row) for row in rows], None if following is None else f"uploaded:{following}")


def show(name: str, store: Store, settings: Settings) -> dict[str, Any]:
    """The document of a set by name or reference; of a name that was uploaded, the newest version that is ready.

    Raises:
        NotFound: there is none.
    """
    row = find_uploaded(name, store, settings)
    if row is not None:
        row = settled(row, store)
        return uploaded(row, store.datasets.versions(row.name))
    info = find_known(name, settings.home)
    if info is None:
        raise NotFound("there is no data set of this name; GET /v1/datasets lists them")
    return known(info, home=settings.home)


def find_known(name: str, home: Path) -> DatasetInfo | None:
    """A set that is always there, or a graph that was imported under exactly this name."""
    if not _NAME.fullmatch(name):
        return None
    if (imported_directory(name, home) / "manifest.json").is_file():
        return imported_info(name, home)
    return next((info for info in known_everywhere(home) if info.name == name and info.kind != "files"), None)


def find_uploaded(name: str, store: Store, settings: Settings) -> Dataset | None:
    """The version that a reference names; for a bare name the newest one, unless an imported graph has that name."""
    if split_ref(name) is not None:
        return row_of(name, store)
    if not _NAME.fullmatch(name) or "." in name or (settings.graphs / name / "manifest.json").is_file():
        return None
    return store.datasets.newest(name)


def row_of(ref: str, store: Store) -> Dataset | None:
    """The uploaded version of that reference; asks the store only for what can be one."""
    return None if split_ref(ref) is None else store.datasets.get(ref)


def delete(ref: str, store: Store, settings: Settings, *, orphans: bool) -> None:
    """Forget an uploaded version and remove its files.

    The row goes first: from then on no job can ask for it.

    Args:
        orphans: also files that lost their row: a service was killed in between, or its database is gone.

    Raises:
        NotFound: there is no such version.
        InUse: a job that has not ended needs it.
        Protected: it was not uploaded.
    """
    if row_of(ref, store) is None:
        _refuse_other(ref, store, settings, orphans=orphans)
        if store.jobs.using(ref):
            raise InUse(f"unfinished jobs need data set {ref}; wait, or cancel them first")
    else:
        store.datasets.delete(ref)
    if row_of(ref, store) is None:  # else the same was uploaded again since, and its import uses what is there
        discard(settings.graphs / ref)


def _refuse_other(ref: str, store: Store, settings: Settings, *, orphans: bool) -> None:
    """What is not an uploaded version is refused with the reason; returns only for files that lost their row."""
    if orphans and split_ref(ref) is not None and (settings.graphs / ref / ABOUT).is_file():
        return
    info = find_known(ref, settings.home)
    if info is not None and info.kind == "imported":
        raise Protected("it was imported on the command line of this machine, and can be removed only there")
    if info is not None:
        raise Protected("it is part of every installation, and cannot be deleted")
    versions = store.datasets.versions(ref) if _NAME.fullmatch(ref) else []
    if versions:
        raise InUse(f"delete one version at a time, by its reference such as {versions[0].ref}")
    raise NotFound("there is no data set of this reference; GET /v1/datasets lists them")


def _imported_alone(home: Path) -> list[str]:
    """Names of graphs that were imported on the command line: those of uploads look like references."""
    return [name for name in imported_names(home) if split_ref(name) is None]


def _read_cursor(cursor: str | None) -> tuple[str, str | None]:
    if cursor is None:
        return "known", None
    match = re.fullmatch(r"known:(\d{1,9})|uploaded:([A-Za-z0-9_.-]{0,100})", cursor)
    if match is None:
        raise ValueError("that is no cursor of ours")
    return ("known", match[1]) if match[1] is not None else ("uploaded", match[2] or None)
