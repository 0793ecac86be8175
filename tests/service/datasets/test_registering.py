"""The step from files on disk to a data set: what is looked at, and what becomes of the files when it is broken off."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from fastapi import Request

from service.api.routes import datasets as routes
from service.api.security import ANYONE, CALLER
from service.datasets import registration
from service.datasets.checks import LOOKED_AT, check_parts
from service.datasets.identity import StoredPart
from service.datasets.in_progress import UploadInProgress
from service.datasets.receive import Received, receive
from service.datasets.refusal import Refused
from service.settings import Settings
from service.store import Store
from tests.service.datasets.forms import BOUNDARY, Part, field, form, table, tables


async def received(settings: Settings, *parts: Part) -> Received:
    async def body():
        yield form([field("name", "mine"), *parts])

    return await receive(
        body(), BOUNDARY.encode(), settings, announced=None, allowance=10**9, progress=UploadInProgress([])
    )


def request() -> Request:
    return Request({"type": "http", CALLER: ANYONE})


def state(store: Store, settings: Settings) -> Any:
    return SimpleNamespace(store=store, settings=settings, checks=anyio.CapacityLimiter(2))


def test_files_stay_when_the_server_stops_while_their_job_is_queued(store, settings, monkeypatch):
    real, is_queued, may_return = registration.register, threading.Event(), threading.Event()

    def slow(*arguments, **options):
        result = real(*arguments, **options)
        is_queued.set()
        may_return.wait()
        return result

    monkeypatch.setattr(registration, "register", slow)

    async def go() -> Received:
        files = await received(settings, *tables())
        task = asyncio.create_task(routes._register(request(), state(store, settings), files, UploadInProgress([])))
        await asyncio.to_thread(is_queued.wait)
        task.cancel()
        may_return.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return files

    files = asyncio.run(go())
    (job,) = store.jobs.list(kind="import")[0]
    assert store.jobs.get(job.id).spec["upload"] == files.upload.id
    assert {path.name for path in files.upload.folder.iterdir()} == {"nodes.csv", "edges.csv"}


def test_files_go_when_they_are_refused_or_there_already(store, settings):
    async def go() -> None:
        first = await received(settings, *tables())
        await routes._register(request(), state(store, settings), first, UploadInProgress([]))
        again = await received(settings, *tables())
        assert (await routes._register(request(), state(store, settings), again, UploadInProgress([])))[1] is False
        bad = await received(settings, table("nodes", ""), table("edges", ""))
        with pytest.raises(Refused):
            await routes._register(request(), state(store, settings), bad, UploadInProgress([]))
        assert [folder.name for folder in settings.uploads.iterdir()] == [first.upload.id]

    asyncio.run(go())


@pytest.mark.parametrize("start", [b"id,", b"i,", b'id,"'])
def test_a_first_line_without_end_costs_no_memory(tmp_path, start):
    content = start + "ä,".encode() * 3_000_000  # at one of the starts a letter is cut in two
    (tmp_path / "nodes.csv").write_bytes(content)
    assert len(content) > LOOKED_AT
    tracemalloc.start()
    check_parts([StoredPart("nodes", "nodes.csv", "", len(content))], tmp_path, memory=10**9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * LOOKED_AT
