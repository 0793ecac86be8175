"""Clients that stop reading an answer, and those that only read it slowly. Time is what the tests say it is."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from service.api.edge import protocol
from service.api.edge.protocol import MOST_LOOKS, BoundedHttp
from service.store.records import Claim, NewEvent
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import Live
from tests.service.api.test_events import until

ROWS, DIM = 10_000, 1_000  # 40 MB, more than any socket keeps
WINDOW = 65_536


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> list[BoundedHttp]:
    """The server's side of each connection, the newest last; `look` says when it looks."""
    found: list[BoundedHttp] = []
    genuine = BoundedHttp.connection_made

    def noted(side: BoundedHttp, transport: asyncio.Transport) -> None:
        genuine(side, transport)
        found.append(side)

    monkeypatch.setattr(BoundedHttp, "connection_made", noted)
    monkeypatch.setattr(protocol, "LOOK_SECONDS", 3_600.0)
    return found


@pytest.fixture
def version(live: Live) -> str:
    return put_version(live.store, live.settings, vectors=np.ones((ROWS, DIM), np.float32)).info.version


def question(version: str, what: str) -> bytes:
    """A request whose answer is large."""
    ways = {
        "table": f"GET /v1/embeddings/{version}/download", "parts": f"GET /v1/embeddings/{version}/download",
        "job": f"GET /v1/jobs/{version}/embeddings/vectors.npy", "lookup": f"POST /v1/embeddings/{version}/lookup",
    }  # fmt: skip
    body = json.dumps({"ids": list(range(ROWS))}).encode() if what == "lookup" else b""
    head = f"{ways[what]} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    head += "Range: bytes=0-9,1000-\r\n" if what == "parts" else ""
    head += "Accept: application/octet-stream\r\nContent-Type: application/json\r\n" if body else ""
    return f"{head}\r\n".encode() + body


@contextmanager
def client(live: Live, sides: list[BoundedHttp]) -> Iterator[tuple[socket.socket, BoundedHttp]]:
    """A new connection, and the server's side of it."""
    before = len(sides)
    with socket.socket() as link:
        link.settimeout(120)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        link.connect(("127.0.0.1", live.http.base_url.port))
        until(lambda: len(sides) > before)
        yield link, sides[-1]


def to_the_end(link: socket.socket) -> None:
    while link.recv(65_536):
        pass


def within(side: BoundedHttp, function: Callable[[], Any]) -> Any:
    """What the function gives in the server's loop, between two of its steps."""
    ended = Future[Any]()
    side.loop.call_soon_threadsafe(lambda: ended.set_result(function()))
    return ended.result(120)


def look(side: BoundedHttp) -> bool:
    """Let the side's timer end, if there is one. Returns whether the connection is there."""

    def now() -> bool:
        if side._look_timer is not None and side in side.connections:
            side._look_timer.cancel()
            side._look()
        return side in side.connections

    return bool(within(side, now))


def looks_until_cut(side: BoundedHttp) -> int:
    looks = 0
    while look(side):
        looks += 1
        assert looks < 10_000, "it is never cut"
        time.sleep(0.001)
    return looks


def held(live: Live) -> int:
    """Descriptors of tables of this server."""
    places = []
    for number in os.listdir("/proc/self/fd"):
        try:
            places.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(place.startswith(str(live.settings.home)) and "vectors.npy" in place for place in places)


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("what", ["table", "parts", "job", "lookup"])
def test_who_reads_nothing_is_cut_off_and_holds_nothing(
    live: Live, sides: list[BoundedHttp], version: str, what: str, closing: bool
) -> None:
    live.http.post(f"/v1/embeddings/{version}/lookup", json={"ids": [0]})  # the table is open
    before = held(live)
    with client(live, sides) as (link, side):
        link.sendall(question(version, what))
        until(lambda: within(side, side._waiting) is not None)
        if what == "lookup":
            assert live.state.in_flight.bytes > 0
        else:
            until(lambda: held(live) > before)
        if closing:  # as the server does with a connection that has been idle, or whose answer it has given up
            within(side, side.transport.close)
        assert looks_until_cut(side) >= MOST_LOOKS
        until(lambda: held(live) == before and live.state.in_flight.bytes == 0)
        with pytest.raises(ConnectionResetError):  # not an end that could pass for that of the answer
            to_the_end(link)


@pytest.mark.parametrize("what", ["table", "lookup"])
def test_who_reads_slowly_gets_all_of_it(live: Live, sides: list[BoundedHttp], version: str, what: str) -> None:
    with client(live, sides) as (link, side):
        link.sendall(question(version, what))
        received = 0
        for _ in range(5 * MOST_LOOKS):
            until(lambda: within(side, side._waiting) is not None)
            assert look(side)
            end = received + 3 * WINDOW  # more than waited on this side: so much was taken since the look
            while received < end:
                received += len(link.recv(65_536))
        while received < ROWS * DIM * 4 + 128:
            received += len(link.recv(1 << 20))
        until(lambda: side._is_idle())
        assert look(side)


def test_who_has_nothing_to_read_is_not_cut_off(live: Live, sides: list[BoundedHttp]) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with client(live, sides) as (link, side):
        for part in (b"", request, request[:9], request[9:]):
            link.sendall(part)
            assert all(look(side) for _ in range(3 * MOST_LOOKS))
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 2:
            received += link.recv(65_536)


def test_an_answer_ends_with_its_connection_also_if_requests_were_sent_ahead(
    live: Live, sides: list[BoundedHttp]
) -> None:
    path = f"/v1/jobs/{live.submit()['id']}/events"
    feed = live.state.feed
    with client(live, sides) as (link, side):
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        until(lambda: feed.watchers == 1)
        link.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3)
        until(lambda: len(side.pipeline) == 3)
        within(side, side.transport.abort)
        until(lambda: feed.watchers == 0)


def test_who_watches_a_job_and_reads_nothing_is_cut_off_and_forgotten(live: Live, sides: list[BoundedHttp]) -> None:
    live.submit()
    job = live.claim()
    feed, large = live.state.feed, {"text": "x" * 1_000_000}
    with client(live, sides) as (link, side):
        link.sendall(f"GET /v1/jobs/{job.id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        until(lambda: feed.watchers == 1)
        live.store.claims.record(Claim.on(job), [NewEvent("note", large) for _ in range(12)])
        until(lambda: within(side, side._waiting) is not None)
        assert looks_until_cut(side) >= MOST_LOOKS
        until(lambda: feed.watchers == 0)
