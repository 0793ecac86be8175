"""Connections that would take the service from everybody else: those that ask nothing, and those that never end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.net.places import Places, Room
from service.settings import Settings
from tests.service.api.server import Live, serving
from tests.service.api.test_bounded_http import HEAD, connection, to_the_end
from tests.service.api.test_events import until
from tests.service.api.test_limits import bearer

BODY = b"Content-Type: application/json\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n"


class Idle:
    closed = False

    def give_way(self) -> None:
        self.closed = True


@pytest.fixture
def links() -> Iterator[Callable[[Live], socket.socket]]:
    with ExitStack() as stack:
        yield lambda live: stack.enter_context(connection(live))


def answer(link: socket.socket, path: str, key: dict[str, str] | None = None) -> bytes:
    """The first line of the answer to a request whose connection then stays open."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (key or {}).items())
    link.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    return link.recv(65_536).partition(b"\r\n")[0]


def busy(link: socket.socket, key: dict[str, str]) -> None:
    """Begin a request whose body never comes; it is asked for, so the request was admitted."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in key.items()).encode()
    link.sendall(HEAD.replace(b"GET /livez", b"POST /v1/jobs") + BODY + lines + b"\r\n")
    assert link.recv(65_536).startswith(b"HTTP/1.1 100 ")


def test_idle_connections_give_way_to_probes_and_to_everybody_else(tmp_path: Path, links) -> None:
    settings = Settings(home=tmp_path, memory_limit="4GB", require_key=True)
    places = Places(10, waiting_per_address=10, kept=(2, 1))
    with serving(settings, places=places) as live:
        key = bearer(live, "read")
        idle = [links(live) for _ in range(50)]  # more than there are places
        assert b"200" in answer(links(live), "/livez")
        assert b"200" in answer(links(live), "/v1/jobs", key)
        assert to_the_end(idle[0]) == b"", "whoever waited longest was closed"


def test_one_address_closes_its_own_idle_connections(tmp_path: Path, links) -> None:
    settings = Settings(home=tmp_path, memory_limit="4GB")
    with serving(settings, places=Places(100, waiting_per_address=3, kept=(0, 0))) as live:
        idle = [links(live) for _ in range(4)]
        assert to_the_end(idle[0]) == b""
        assert b"200" in answer(idle[1], "/livez")


def test_idle_connections_of_another_address_are_not_closed() -> None:
    places = Places(100, waiting_per_address=2, kept=(0, 0))
    other, flood = Idle(), [Idle() for _ in range(5)]
    places.enter(other, "192.0.2.1")
    for each in flood:
        assert places.enter(each, "192.0.2.2") is Room.ANYONE
    assert [each.closed for each in (other, *flood)] == [False, True, True, True, False, False]


def test_connections_with_a_request_are_not_counted_by_address() -> None:
    """Behind a proxy all clients have its address."""
    places = Places(100, waiting_per_address=2, kept=(0, 0))
    clients = [Idle() for _ in range(50)]
    for each in clients:
        places.enter(each, "192.0.2.1")
        places.work(each)
    assert not any(each.closed for each in clients)


def test_the_last_places_are_for_keys_and_probes() -> None:
    places = Places(5, waiting_per_address=9, kept=(2, 1))
    given = []
    for _ in range(6):
        each = Idle()
        given.append(places.enter(each, "192.0.2.1"))
        places.work(each)  # none of them will give way
    assert given == [Room.ANYONE] * 2 + [Room.KEYS] * 2 + [Room.PROBES, Room.NOBODY]


def test_while_all_are_busy_probes_and_keys_are_answered(tmp_path: Path, links) -> None:
    settings = Settings(home=tmp_path, memory_limit="4GB", require_key=True)
    with serving(settings, places=Places(6, waiting_per_address=9, kept=(2, 2))) as live:
        key, greedy = bearer(live, "read"), bearer(live, "submit")
        for _ in range(2):
            busy(links(live), greedy)
        stranger = links(live)
        assert b"503" in answer(stranger, "/v1/jobs")
        assert to_the_end(stranger) == b"", "and its place is free again"
        assert b"200" in answer(links(live), "/v1/jobs", key)
        for _ in range(2):
            busy(links(live), greedy)
        assert b"503" in answer(links(live), "/v1/jobs", key)
        assert b"200" in answer(links(live), "/livez")


def test_one_key_cannot_keep_every_connection_busy(tmp_path: Path, links) -> None:
    settings = Settings(home=tmp_path, memory_limit="4GB", require_key=True, max_requests_per_key=2)
    with serving(settings) as live:
        greedy, other = bearer(live, "submit"), bearer(live, "read")
        first = links(live)
        busy(first, greedy)
        busy(links(live), greedy)
        assert b"429" in answer(links(live), "/v1/jobs", greedy)
        assert b"200" in answer(links(live), "/v1/jobs", other)
        first.close()
        until(lambda: b"200" in answer(links(live), "/v1/jobs", greedy))
