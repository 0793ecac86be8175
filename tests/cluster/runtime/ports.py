"""Which TCP ports of an address answer: all of them tried, thousands at a time."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterable, Iterator

AT_ONCE = 8_000
QUIET_SECONDS = 1.0  # after which an address that has said nothing at all will not


def open_ports(address: str, ports: Iterable[int] = range(1, 65_536)) -> set[int]:
    """Ports to which a connection is made, from the calling thread's network. Silence and refusal count as closed."""
    found: set[int] = set()
    waiting = iter(ports)
    while batch := _begin(address, waiting, found):
        found |= _settle(batch)
    return found


def _begin(address: str, ports: Iterator[int], found: set[int]) -> dict[int, tuple[socket.socket, int]]:
    """Begin a batch of connections; refusals on the spot are not waited for."""
    batch: dict[int, tuple[socket.socket, int]] = {}
    for port in ports:
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        one.setblocking(False)
        code = one.connect_ex((address, port))
        if code == errno.EINPROGRESS:
            batch[one.fileno()] = (one, port)
        else:
            if code == 0:
                found.add(port)
            one.close()
        if len(batch) == AT_ONCE:
            break
    return batch


def _settle(batch: dict[int, tuple[socket.socket, int]]) -> set[int]:
    found: set[int] = set()
    poll = select.epoll()
    for number in batch:
        poll.register(number, select.EPOLLOUT)
    last = time.monotonic()
    while batch and time.monotonic() - last < QUIET_SECONDS:
        for number, _ in poll.poll(0.1, len(batch)):
            one, port = batch.pop(number)
            poll.unregister(number)
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.add(port)
            one.close()
            last = time.monotonic()
    for one, _ in batch.values():
        one.close()
    poll.close()
    return found
