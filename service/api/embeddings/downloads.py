"""Whole tables as files: opened before the answer begins, so that deleting the version does not cut it short."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any
from weakref import WeakValueDictionary

from starlette.types import Receive, Scope, Send

from service.api.embeddings.bounded_pool import BoundedPool
from service.api.embeddings.catalog import ServedVersion
from service.api.embeddings.negotiation import IMMUTABLE, JSON, NO_CACHE, NPY
from service.api.embeddings.raw_response import RawResponse
from service.api.files import Download
from service.api.problems import Problem, unavailable
from service.embeddings.layout import VECTORS, ids_file
from service.embeddings.parquet import parquet_file
from service.embeddings.parquet_room import NoRoom, ParquetRoom, TooManyInUse, hold
from service.embeddings.table import Table

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CONVERSIONS, _OPENED = 2, 4  # at a time
_BUSY_SECONDS = 30


class TableFile(Download):
    """A file that is open; it is closed once it was sent, or by `close`."""

    def __init__(self, descriptor: int, *, name: str, kind: str, tag: str, version: str, pinned: bool):
        self._descriptor: int | None = descriptor
        self.tag = tag.encode()
        headers = {
            "ETag": tag, "Cache-Control": (IMMUTABLE if pinned else NO_CACHE).decode(), "Nml-Version": version,
        }  # fmt: skip
        super().__init__(
            f"/dev/fd/{descriptor}", stat_result=os.fstat(descriptor), media_type=kind, filename=name, headers=headers
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()

    def not_modified(self) -> RawResponse:
        """304: the client has it."""
        kept = (b"etag", b"cache-control", b"nml-version")
        return RawResponse([b""], [pair for pair in self.raw_headers if pair[0] in kept], 304)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:  # an answer that was never sent: the client hung up before
        self.close()


def table_file(served: ServedVersion, form: str, room: ParquetRoom, *, pinned: bool) -> TableFile:
    """The file of a version in this form; Parquet is made when it is first asked for. May wait for the disk.

    Raises:
        FileNotFoundError: the version was deleted.
        Problem: 507, there is no room to make it; 503, there will be once others have been downloaded.
    """
    table, info = served.table, served.info
    options: dict[str, Any] = {"version": served.version, "pinned": pinned}
    if form == "parquet":
        descriptor = _open_parquet(table, room)
        found = os.fstat(descriptor)  # made once: whoever makes it anew makes another
        tag = f'"{served.version}-parquet-{found.st_size:x}-{found.st_mtime_ns:x}"'
        name, kind = f"{served.version}.parquet", "application/vnd.apache.parquet"
        return TableFile(descriptor, name=name, kind=kind, tag=tag, **options)
    file = VECTORS if form == "npy" else ids_file(info)
    descriptor = os.open(table.directory / file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    kind = JSON if file.endswith(".json") else NPY
    return TableFile(descriptor, name=f"{served.version}.{file}", kind=kind, tag=f'"{info.files[file]}"', **options)


def _open_parquet(table: Table, room: ParquetRoom) -> int:
    """A descriptor of the file, which nobody removes until it is closed."""
    while True:
        try:
            descriptor = os.open(parquet_file(table, room), os.O_RDONLY | os.O_CLOEXEC)
        except TooManyInUse as error:
            raise unavailable(error.message, seconds=_BUSY_SECONDS) from error
        except NoRoom as error:
            raise Problem(507, error.message) from error
        except OSError as error:
            if error.errno in _FULL:
                raise Problem(507, "the disk is too full to make this file; npy and ids are there already") from error
            raise
        if hold(descriptor):
            return descriptor
        os.close(descriptor)  # it made room for another in this very moment


class TableFiles:
    """Opens files of tables. Making Parquet takes minutes for a large table: a few at a time, each but once, and those
    who want the same wait without a thread, so that everything else goes on."""

    def __init__(self, room: ParquetRoom) -> None:
        self._room = room
        self._conversions, self._others = BoundedPool(_CONVERSIONS), BoundedPool(_OPENED)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by version, while anyone waits

    async def open(self, served: ServedVersion, form: str, *, pinned: bool) -> TableFile:
        """As `table_file`; besides, Problem 503 where too many wait."""
        if form != "parquet":
            return await self._others.run(table_file, served, form, self._room, pinned=pinned)
        lock = self._locks.setdefault(served.version, asyncio.Lock())
        async with lock:
            return await self._conversions.run(table_file, served, form, self._room, pinned=pinned)
