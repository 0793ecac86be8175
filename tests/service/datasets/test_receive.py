"""Bodies on their way to disk: in any pieces, within limits, and gone without a trace if they do not arrive."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from service.datasets import receive as receiving
from service.datasets.form import Form
from service.datasets.in_progress import UploadInProgress
from service.datasets.receive import Received, receive
from service.datasets.refusal import Refused
from service.datasets.uploads import Upload, disk_errors
from service.settings import Settings
from tests.service.datasets.forms import BOUNDARY, Part, archive, field, form, table, tables

BOUNDARY_BYTES = BOUNDARY.encode()
NEARLY = [b"\r\n--", b"\r\n", b"-", BOUNDARY_BYTES, b"--", b"\r", b"x"]  # of which boundaries are made
MB = 1 << 20


async def stream(pieces: Iterable[bytes | BaseException]) -> AsyncIterator[bytes]:
    for piece in pieces:
        if isinstance(piece, BaseException):
            raise piece
        yield piece


def run(pieces: Iterable[bytes | BaseException], settings: Settings, *, allowance: int = 10**12, announced=None):
    async def go() -> Received:
        body = stream(pieces)
        return await receive(
            body, BOUNDARY_BYTES, settings, announced=announced, allowance=allowance, progress=UploadInProgress([])
        )

    return asyncio.run(go())


def left_behind(settings: Settings) -> list[Path]:
    return list(settings.uploads.iterdir()) if settings.uploads.exists() else []


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60)
    | st.lists(st.sampled_from([b"\r\n--", b"\r\n", b"-", BOUNDARY_BYTES, b"--", b"\r", b"x"]), max_size=12).map(
        b"".join
    ),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_files_arrive_as_they_were_sent_however_the_body_is_cut(settings: Settings, content: bytes, cuts: list[int]):
    if b"\r\n--" + BOUNDARY_BYTES in b"\r\n" + content:
        return  # a sender chooses a boundary that the content does not hold
    body = form(
        [field("name", "a"), field("options", {"directed": True}), table("nodes", content), table("edges", "e")]
    )
    upload = Upload(settings)
    counted: list[int] = []
    parser = Form(BOUNDARY_BYTES, upload, counted.append)
    at = turn = 0
    while at < len(body):
        size = cuts[turn % len(cuts)]
        parser.feed(body[at : at + size])
        at, turn = at + size, turn + 1
    parser.finish()
    assert (parser.name, parser.options and parser.options["directed"]) == ("a", True)
    assert (upload.folder / "nodes.csv").read_bytes() == content
    nodes = upload.parts["nodes"]
    assert (nodes.sha256, nodes.size) == (hashlib.sha256(content).hexdigest(), len(content))
    assert sum(counted) == len(content) + 1
    upload.discard()


def test_memory_does_not_grow_with_the_upload(settings: Settings):
    start = form([field("name", "a"), archive(b"?")]).partition(b"?")

    def pieces(count: int) -> Iterable[bytes]:
        yield start[0]
        yield from (bytes(65_536) for _ in range(count))
        yield start[2]

    peaks = []
    for count in (64, 1_600):
        tracemalloc.start()
        received = run(pieces(count), settings)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert received.size == count * 65_536
        received.upload.discard()
    assert peaks[1] < peaks[0] + MB < 12 * MB


def test_the_event_loop_goes_on_while_files_are_written(settings: Settings):
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def go() -> None:
        ticking = asyncio.create_task(tick())
        start = form([field("name", "a"), archive(b"?")]).partition(b"?")
        pieces = [start[0] + bytes(4 * MB), *(bytes(4 * MB) for _ in range(10)), start[2]]
        received = await receive(
            stream(pieces), BOUNDARY_BYTES, settings, announced=None, allowance=10**12, progress=UploadInProgress([])
        )
        ticking.cancel()
        received.upload.discard()

    asyncio.run(go())
    assert turns > 3 * 12  # more often than there are pieces: nothing was written in between turns


@pytest.mark.parametrize("keep", [1, 100, 200, 400])
def test_a_client_that_goes_away_leaves_nothing(settings: Settings, keep: int):
    body = form([field("name", "a"), *tables()])
    with pytest.raises(ClientDisconnect):
        run([body[:keep], ClientDisconnect()], settings)
    assert left_behind(settings) == []


def test_a_request_that_is_cancelled_leaves_nothing(settings: Settings):
    started = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield form([field("name", "a"), *tables()])[:250] + bytes(2 * MB)
        started.set()
        await asyncio.sleep(3_600)
        yield b""

    async def go() -> None:
        task = asyncio.create_task(
            receive(
                endless(), BOUNDARY_BYTES, settings, announced=None, allowance=10**12, progress=UploadInProgress([])
            )
        )
        await started.wait()
        assert left_behind(settings) != []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert left_behind(settings) == []


def test_a_silent_client_is_not_waited_for(settings: Settings, monkeypatch):
    monkeypatch.setattr(receiving, "SILENT_SECONDS", 0.05)

    async def silent() -> AsyncIterator[bytes]:
        yield form([field("name", "a"), *tables()])[:200]
        await asyncio.sleep(3_600)

    with pytest.raises(Refused) as refused:
        asyncio.run(
            receive(silent(), BOUNDARY_BYTES, settings, announced=None, allowance=10**12, progress=UploadInProgress([]))
        )
    assert refused.value.status == 408
    assert left_behind(settings) == []


def endless_file() -> Iterable[bytes]:
    """A body that never ends: whoever reads it to the end never returns."""
    yield form([field("name", "a"), archive(b"?")]).partition(b"?")[0]
    while True:
        yield bytes(65_536)


@pytest.mark.parametrize(
    "changes, allowance, status",
    [({"max_upload_bytes": 3 * MB}, 10**12, 413), ({}, 3 * MB, 403), ({"min_free_bytes": 10**18}, 10**12, 507)],
)
def test_limits_hold_while_the_body_arrives(settings: Settings, changes, allowance, status):
    limited = settings.model_copy(update=changes)
    with pytest.raises(Refused) as refused:
        run(endless_file(), limited, allowance=allowance)
    assert (refused.value.status, refused.value.field) == (status, "body")
    assert left_behind(settings) == []


def test_what_would_not_fit_the_disk_is_refused_before_its_first_byte(settings: Settings):
    settings.uploads.mkdir(parents=True)
    with pytest.raises(Refused) as refused:
        run(iter([AssertionError("a byte was read")]), settings, announced=10**18)
    assert refused.value.status == 507


def test_a_disk_that_is_full_is_a_refusal_and_other_errors_are_not():
    with pytest.raises(Refused) as refused, disk_errors(), open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    assert refused.value.status == 507
    with pytest.raises(OSError, match="Bad file") as other, disk_errors():
        raise OSError(errno.EBADF, "Bad file descriptor")
    assert other.value.errno == errno.EBADF


def test_files_are_the_owners_alone(settings: Settings):
    received = run([form([field("name", "a"), Part("npz", b"x", "../../outside.npz")])], settings)
    assert [path.relative_to(settings.uploads).parts[1:] for path in settings.uploads.rglob("*.npz")] == [
        ("graph.npz",)
    ]
    assert received.upload.folder.stat().st_mode & 0o077 == 0
    assert (received.upload.folder / "graph.npz").stat().st_mode & 0o077 == 0
