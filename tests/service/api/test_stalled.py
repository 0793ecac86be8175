"""Clients that stop reading an answer are cut off, those that only read it slowly are not."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from service import serve_api
from service.net.bounded_http import BoundedHttp
from service.store.records import Claim, NewEvent
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import Live
from tests.service.api.test_events import until

ROWS, DIM = 10_000, 1_000  # 40 MB, more than any socket keeps
WINDOW = 65_536
SECONDS = 1.0


@pytest.fixture
def live(serve: Callable[..., Live], monkeypatch: pytest.MonkeyPatch) -> Live:
    """A server that loses patience after a second."""
    monkeypatch.setattr(serve_api, "STALLED_SECONDS", SECONDS)
    return serve()


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
def client(live: Live) -> Iterator[socket.socket]:
    """A new connection with a small window."""
    with socket.socket() as link:
        link.settimeout(120)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        link.connect(("127.0.0.1", live.http.base_url.port))
        yield link


def to_the_end(link: socket.socket) -> None:
    while link.recv(65_536):
        pass


def held(live: Live) -> int:
    """Descriptors of tables of this server."""
    places = []
    for number in os.listdir("/proc/self/fd"):
        try:
            places.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(place.startswith(str(live.settings.home)) and "vectors.npy" in place for place in places)


@pytest.mark.parametrize("what", ["table", "parts", "job", "lookup"])
def test_who_reads_nothing_is_cut_off_and_holds_nothing(live: Live, version: str, what: str) -> None:
    live.http.post(f"/v1/embeddings/{version}/lookup", json={"ids": [0]})  # the table is open
    before = held(live)
    with client(live) as link:
        link.sendall(question(version, what))
        until(lambda: live.state.in_flight.taken > 0 if what == "lookup" else held(live) > before)
        until(lambda: held(live) == before and live.state.in_flight.taken == 0)
        with pytest.raises(ConnectionResetError):  # not an end that could pass for that of the answer
            to_the_end(link)


def test_a_connection_that_the_server_has_closed_is_cut_off_too(
    live: Live, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an answer that it gave up: closing waits until what was written before is sent."""
    sides: list[BoundedHttp] = []
    genuine = BoundedHttp.connection_made
    monkeypatch.setattr(BoundedHttp, "connection_made", lambda side, link: (sides.append(side), genuine(side, link)))
    with client(live) as link:
        link.sendall(question(version, "table"))
        until(lambda: bool(sides) and sides[0].flow is not None and sides[0].flow.write_paused)
        side = sides[0]
        side.loop.call_soon_threadsafe(side.transport.close)
        until(lambda: side not in side.connections)
        with pytest.raises(ConnectionResetError):
            to_the_end(link)


@pytest.mark.parametrize("what", ["table", "lookup"])
def test_who_reads_slowly_gets_all_of_it(live: Live, version: str, what: str) -> None:
    with client(live) as link:
        link.sendall(question(version, what))
        received, slow_until = 0, time.monotonic() + 4 * SECONDS
        while time.monotonic() < slow_until:
            end = received + 3 * WINDOW
            while received < end:
                received += len(link.recv(WINDOW))
            time.sleep(SECONDS / 10)
        while received < ROWS * DIM * 4 + 128:
            part = link.recv(1 << 20)
            assert part, "the answer was cut short"
            received += len(part)


def test_who_has_nothing_to_read_is_not_cut_off(live: Live) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with client(live) as link:
        for part in (request, request[:9], request[9:]):
            link.sendall(part)
            time.sleep(2 * SECONDS)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 2:
            received += link.recv(65_536)


def test_an_answer_ends_with_its_connection_also_if_requests_were_sent_ahead(live: Live) -> None:
    path = f"/v1/jobs/{live.submit()['id']}/events"
    with client(live) as link:
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        until(lambda: live.state.feed.watchers == 1)
        link.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3)
        assert link.recv(65_536).startswith(b"HTTP/1.1 200 OK")
        time.sleep(0.2)  # until the server has read them
    until(lambda: live.state.feed.watchers == 0)


def test_who_watches_a_job_and_reads_nothing_is_cut_off_and_forgotten(live: Live) -> None:
    live.submit()
    job = live.claim()
    large = {"text": "x" * 1_000_000}
    with client(live) as link:
        link.sendall(f"GET /v1/jobs/{job.id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        until(lambda: live.state.feed.watchers == 1)
        live.store.claims.record(Claim.on(job), [NewEvent("note", large) for _ in range(12)])
        until(lambda: live.state.feed.watchers == 0)
