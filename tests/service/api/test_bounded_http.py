"""What a client may send before anyone asks who it is, over plain sockets."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress

import pytest

from service.api.edge.guard import HEADER_LINES
from service.net import bounded_http
from service.net.bounded_http import BoundedHttp
from service.serve_api import raise_file_limit
from tests.service.api.server import Live
from tests.service.api.test_events import until

HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def connect(shared: Live) -> Iterator[Callable[[], socket.socket]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connection(shared))


def connection(live: Live) -> socket.socket:
    port = live.http.base_url.port
    assert port is not None
    return socket.create_connection(("127.0.0.1", port), timeout=120)


def to_the_end(link: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    with suppress(ConnectionResetError):  # it closed before it had read all that was sent
        while part := link.recv(65_536):
            received += part
    return received


def poured(link: socket.socket, start: bytes, piece: bytes, most: int) -> int:
    """Send a start, then a piece again and again. Returns how many bytes were taken before the server closed."""
    sent = 0
    with suppress(ConnectionResetError, BrokenPipeError):
        link.sendall(start)
        while sent < most:
            link.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize(
    "start, piece",
    [
        (HEAD, b"a: b\r\n" * 1_000),  # many lines
        (HEAD + b"x: ", b"y" * 10_000),  # one line
        (b"GET /", b"y" * 10_000),  # an address
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 1_000),  # lines after the body
        (CHUNKED + b"2\r\n{}\r\n0\r\nx: ", b"y" * 10_000),
    ],
)
def test_endless_heads_are_cut_off(connect: Callable[[], socket.socket], start: bytes, piece: bytes) -> None:
    assert poured(connect(), start, piece, 50_000_000) < 20_000_000  # what both systems' socket buffers hold


@pytest.mark.parametrize(
    "line", [b"x: " + b"y" * (bounded_http.HEAD_BYTES - 30) + b"\r\n", b"a: b\r\n" * (HEADER_LINES + 1)]
)
def test_a_complete_head_that_is_too_large_is_told_so(connect: Callable[[], socket.socket], line: bytes) -> None:
    link = connect()
    link.sendall(HEAD + line + b"\r\n")
    assert to_the_end(link).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_a_head_within_bounds_is_taken_in_pieces_of_any_size(connect: Callable[[], socket.socket]) -> None:
    head = HEAD + b"x: " + b"y" * 40_000 + b"\r\n" + b"a: b\r\n" * 150
    for size in (len(head) + 100, 10_000, 977):
        link = connect()
        for whole in (head + b"\r\n", head + b"Connection: close\r\n\r\n"):  # the count begins anew
            for at in range(0, len(whole), size):
                link.sendall(whole[at : at + size])
        assert to_the_end(link).count(b"HTTP/1.1 200 OK") == 2


def test_requests_sent_ahead_are_answered_as_far_as_there_is_room(connect: Callable[[], socket.socket]) -> None:
    link = connect()
    some = bounded_http.MOST_PIPELINED // 2
    link.sendall((HEAD + b"x: " + b"y" * 2_000 + b"\r\n\r\n") * (some - 1) + HEAD + b"Connection: close\r\n\r\n")
    assert to_the_end(link).count(b"HTTP/1.1 200 OK") == some
    flood = connect()
    poured(flood, b"", (HEAD + b"\r\n") * 1_000, 1)
    assert to_the_end(flood).count(b"HTTP/1.1 200 OK") <= bounded_http.MOST_PIPELINED


def test_a_large_body_is_no_head(shared: Live) -> None:
    answer = shared.http.post("/v1/jobs", content=b'"' + b"y" * 500_000 + b'"')
    assert answer.status_code in (415, 422)
    pieces = (b"y" for _ in range(50_000))  # six bytes of framing each
    assert shared.http.post("/v1/jobs", content=pieces).status_code in (415, 422)


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> list[BoundedHttp]:
    """The server's side of each connection, the newest last; how long a head takes is for `let_time_pass` to say."""
    found: list[BoundedHttp] = []
    genuine = BoundedHttp.connection_made

    def noted(side: BoundedHttp, transport: asyncio.Transport) -> None:
        found.append(side)
        genuine(side, transport)

    monkeypatch.setattr(BoundedHttp, "connection_made", noted)
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 3_600.0)
    return found


def let_time_pass(sides: list[BoundedHttp], connections: int, begun: bytes) -> None:
    """Once the newest side has read what was begun and answered what was before: its timer ends, if there is one."""
    until(lambda: len(sides) == connections and sides[-1]._unparsed == len(begun) and sides[-1]._is_idle())
    side, ended = sides[-1], Future[bool]()

    def end() -> None:  # in the server's loop, between two of its steps
        timed = side._head_timer is not None
        if timed:
            side._head_timer.cancel()
            side._head_is_late()
        ended.set_result(timed)

    side.loop.call_soon_threadsafe(end)
    assert ended.result(120), "it would be waited for without end"


@pytest.mark.parametrize("begun", [b"", b"\r\n"])
def test_who_begins_no_request_is_left_in_time(
    connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.2)
    link = connect()
    link.sendall(begun)
    assert to_the_end(link) == b""


@pytest.mark.parametrize("begun", [HEAD, b"GE"])
def test_a_head_must_come_in_time(connect: Callable[[], socket.socket], sides: list[BoundedHttp], begun: bytes) -> None:
    link = connect()
    link.sendall(begun)
    let_time_pass(sides, 1, begun)
    assert to_the_end(link).startswith(b"HTTP/1.1 408")


def test_the_second_head_of_a_connection_must_come_in_time_too(
    connect: Callable[[], socket.socket], sides: list[BoundedHttp]
) -> None:
    for number, begun in enumerate((HEAD, b"\r\n"), 1):
        link = connect()
        link.sendall(HEAD + b"\r\n")
        assert link.recv(65_536).startswith(b"HTTP/1.1 200 OK")
        link.sendall(begun)
        let_time_pass(sides, number, begun)
        assert (b"408 Request Timeout" in to_the_end(link)) == (begun == HEAD)


def test_who_dribbles_the_body_of_a_request_that_was_answered_is_left_in_time(
    connect: Callable[[], socket.socket], sides: list[BoundedHttp]
) -> None:
    """Refused before its body was there, for want of a key say: bytes of it must not keep the connection for ever."""
    link = connect()
    link.sendall(HEAD.replace(b"GET", b"POST") + b"Content-Length: 1000\r\n\r\n")
    assert link.recv(65_536).startswith(b"HTTP/1.1 405")
    link.sendall(b"x")
    until(lambda: sides[-1]._head_timer is not None)  # else it would be waited for without end
    let_time_pass(sides, 1, b"")
    assert to_the_end(link) == b""


def test_what_is_no_http_is_a_problem_document(connect: Callable[[], socket.socket]) -> None:
    link = connect()
    link.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    received = to_the_end(link)
    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"application/problem+json" in received


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_file_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
