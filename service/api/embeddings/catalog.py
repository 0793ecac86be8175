"""Which version a name means, and its open table: one snapshot of the store per process, taken anew when it changes.

On SQLite every request compares the store's revision, so an answer is never older than its request. Elsewhere a
background task compares it every `poll_seconds`, and so does every request that has changed something or asks for
something that is not in the snapshot. A table that was closed or deleted stays readable for requests that hold it: its
memory maps go with the last of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from service.api.embeddings.responses import ResponseHeaders
from service.api.embeddings.revision import RevisionReader
from service.api.problems import Problem, clean, unavailable
from service.api.threads import in_thread, read
from service.embeddings.integrity import Damaged, find_damage
from service.embeddings.layout import read_info
from service.embeddings.search import Searcher
from service.embeddings.table import Table
from service.settings import Settings
from service.store import Store
from service.store.errors import Unavailable
from service.store.records import Embedding, Snapshot

CHECKED_AT_ONCE = 64 << 20  # bytes of a version that is compared with its checksums before it is served first
DAMAGED_RETRY = 3_600  # seconds: it lasts until somebody publishes anew, so that clients do not wait for it
MOST_OPEN = 64  # tables; their maps cost address space and a few pages
PUBLISHING_RETRY = 2  # seconds
_PAUSE = 2.0  # after something that nobody expected

log = logging.getLogger("service.api")


class ServedVersion:
    """An open version, with what answers from it need."""

    def __init__(self, version: str, table: Table, *, use_index_from: int):
        info = table.info
        self.version, self.table, self.info, self.ids = version, table, info, table.ids
        self.vectors: NDArray[np.float32] = table.vectors
        self.labels = table.labels
        self.searcher = Searcher(table, use_index_from=use_index_from)
        self.headers = ResponseHeaders(version, info.dim)


class Found(NamedTuple):
    """A version, and whether it was asked for by its own name rather than by an alias."""

    served: ServedVersion
    pinned: bool


class Catalog:
    """Of one process."""

    def __init__(self, store: Store, settings: Settings):
        self._store, self._settings = store, settings
        self._revision = RevisionReader(store) if store.reads_inline else None
        self._snapshot = Snapshot(-1, {}, {})
        self._aliases: dict[str, list[str]] = {}  # by version
        self._served: OrderedDict[str, ServedVersion] = OrderedDict()
        self._found: dict[str, Found] = {}  # by version or alias; what was resolved since the snapshot was taken
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._suspects: set[str] = set()  # versions with files that were changed
        self._lock = asyncio.Lock()

    async def find(self, ref: str) -> Found:
        """The open version that `ref` means now.

        Raises:
            Problem: 404 unknown; 409 not published yet, or never; 503 its files cannot be read, or are damaged.
            Unavailable: the database does not answer.
        """
        if self._revision is not None and self._revision.revision() != self._snapshot.revision:
            await self.refresh()
        found = self._found.get(ref)
        if found is None:
            return await self._resolve(ref)
        if found.served.table.files.changed() is not None:
            self._drop(found.served.version, suspect=True)
            return await self._resolve(ref)
        self._served.move_to_end(found.served.version)
        return found

    async def row(self, ref: str) -> Embedding:
        """What the store has of a version, in any state.

        Raises:
            Problem: 404.
            Unavailable: the database does not answer.
        """
        await self.refresh()
        row = self._row(ref)
        if row is None:
            raise Problem(404, "there is no version and no alias of this name")
        return row

    def aliases_of(self, version: str) -> list[str]:
        """The aliases that point to a version, sorted."""
        return self._aliases.get(version, [])

    async def refresh(self) -> None:
        """Take a new snapshot if anything has changed.

        Raises:
            Unavailable: the database does not answer.
        """
        async with self._lock:  # so that of many who see a change only one reads it
            store = self._store.embeddings
            if await read(self._store, store.revision) != self._snapshot.revision:
                self._take(await in_thread(store.snapshot))

    async def run(self) -> None:
        """Notice changes for as long as the app lives."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            try:
                await self.refresh()
            except Unavailable:
                pass
            except Exception:
                log.exception("the catalog of embeddings could not be read; trying again")
                await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """When the app stops, before the store is closed."""
        if self._revision is not None:
            self._revision.close()

    def _take(self, snapshot: Snapshot) -> None:
        before, self._snapshot, self._found, self._aliases = self._snapshot, snapshot, {}, {}
        for alias, version in sorted(snapshot.aliases.items()):
            self._aliases.setdefault(version, []).append(alias)
        for version in list(self._served):
            row, earlier = snapshot.versions.get(version), before.versions.get(version)
            if row is None or row.state != "ready":
                del self._served[version]
            elif earlier is None or row.indexes != earlier.indexes:  # there is a new one to search with
                served = self._served[version]
                self._served[version] = ServedVersion(
                    version, served.table, use_index_from=self._settings.index_min_rows
                )

    def _row(self, ref: str) -> Embedding | None:
        return self._snapshot.versions.get(self._snapshot.aliases.get(ref, ref))

    async def _resolve(self, ref: str) -> Found:
        row = self._row(ref)
        if row is None or row.state != "ready":  # perhaps it is by now
            await self.refresh()
            row = self._row(ref)
        for is_last in (False, True):
            version = _ready(row)
            served = self._served.get(version)
            if served is not None and served.table.files.changed() is None:
                break
            try:
                served = await self._open(version)
                break
            except Damaged as error:
                await self._mark(version, str(error))
                raise damaged(str(error)) from error
            except (OSError, ValueError) as error:
                await self.refresh()  # deleted in this very moment?
                row = self._row(ref)
                if is_last:
                    _ready(row)
                    log.exception("version %s is published, but cannot be opened", version)
                    raise unavailable("the files of this version cannot be read now", seconds=30) from error
        assert served is not None
        found = Found(served, pinned=ref == version)
        if version in self._served and self._snapshot.aliases.get(ref, ref) == version:
            self._found[ref] = found
        return found

    async def _open(self, version: str) -> ServedVersion:
        """One at a time for each version: a table that was changed is read from end to end first.

        Raises:
            Damaged, OSError, ValueError: it cannot be served.
        """
        async with self._opening.setdefault(version, asyncio.Lock()):
            served = self._served.get(version)
            if served is not None:
                if served.table.files.changed() is None:
                    return served
                self._drop(version, suspect=True)
            directory = self._settings.version_directory(version)
            table = await in_thread(_opened, directory, whole=version in self._suspects)
            self._suspects.discard(version)
            return self._keep(version, table)

    def _drop(self, version: str, *, suspect: bool) -> None:
        """Serve it no more until it is opened anew; a suspect is compared with its checksums then."""
        self._served.pop(version, None)
        self._found = {ref: found for ref, found in self._found.items() if found.served.version != version}
        if suspect:
            self._suspects.add(version)

    async def _mark(self, version: str, why: str) -> None:
        """Tell all processes that it is damaged."""
        log.error("version %s is damaged: %s", version, why)
        try:
            await in_thread(self._store.embeddings.damage, version, why)
            await self.refresh()
        except Unavailable:
            pass  # the next request finds it damaged again

    def _keep(self, version: str, table: Table) -> ServedVersion:
        """Among the open ones, unless it was opened twice at once, or deleted meanwhile."""
        row = self._snapshot.versions.get(version)
        served = self._served.get(version)
        if served is not None:
            return served
        served = ServedVersion(version, table, use_index_from=self._settings.index_min_rows)
        if row is not None and row.state == "ready":
            self._served[version] = served
            while len(self._served) > MOST_OPEN:
                closed, _ = self._served.popitem(last=False)
                self._found = {ref: found for ref, found in self._found.items() if found.served.version != closed}
        return served


def damaged(why: str) -> Problem:
    """503 for a version that is served no more."""
    return Problem(
        503, f"this version is damaged: {clean(why, 500)}. Publish it again (POST /v1/embeddings), or use another",
        headers={"Retry-After": str(DAMAGED_RETRY)}, kind="damaged",
    )  # fmt: skip


def _opened(directory: Path, *, whole: bool) -> Table:
    """The table, compared with its checksums if it is small or `whole` asks for it.

    Raises:
        Damaged: its files are not what was published.
        OSError, ValueError: it cannot be opened.
    """
    info = read_info(directory)
    try:
        table = Table.open(directory)
    except ValueError as error:
        raise Damaged(str(error)) from error
    if whole or info.bytes <= CHECKED_AT_ONCE:
        with suppress(FileNotFoundError):  # deleted since: who asked before is answered from what was mapped
            why = find_damage(directory, info)
            if why is not None:
                raise Damaged(why)
    return table


def _ready(row: Embedding | None) -> str:
    """The version's name.

    Raises:
        Problem: 404 or 409 unless it is ready.
    """
    if row is None:
        raise Problem(404, "there is no version and no alias of this name")
    if row.state == "publishing":
        raise Problem(
            409, "this version is still being published; try again in a moment",
            headers={"Retry-After": str(PUBLISHING_RETRY)}, kind="publishing",
        )  # fmt: skip
    if row.state == "damaged":
        raise damaged(row.failure or "its files are not what was published")
    if row.state != "ready":
        why = row.failure or "its job has failed"
        raise Problem(409, f"this version could not be published: {clean(why, 500)}", kind="not-published")
    return row.version
