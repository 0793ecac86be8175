"""Room for connections: whoever waits longest without a request gives way to a newcomer, and the last places are kept.

A client that opens connections and asks nothing thus closes its own, and those of others only where all are taken. Only
connections that wait are counted by address: behind a proxy, which has one address for everybody, those with a request
are its clients' and bounded by key.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum
from typing import Protocol

FOR_KEYS = 80  # places for those with a key, when all other places are busy
FOR_PROBES = 20  # the very last


class Room(IntEnum):
    """For whom there is room on a connection, at the time that it was made."""

    ANYONE = 0
    KEYS = 1
    PROBES = 2
    NOBODY = 3


class Connection(Protocol):
    def give_way(self) -> None:
        """Close at once."""


class Places:
    """The open connections of one process."""

    def __init__(self, most: int, *, waiting_per_address: int, kept: tuple[int, int] = (FOR_KEYS, FOR_PROBES)):
        """`kept`: of the `most`, how many are for keys and probes, and for probes alone."""
        self._probes = most - kept[1]
        self._keys = self._probes - kept[0]
        self._most, self._waiting_per_address = most, waiting_per_address
        self._open: dict[Connection, str] = {}
        self._waiting: OrderedDict[Connection, None] = OrderedDict()  # who waits longest is first
        self._waiting_at: dict[str, OrderedDict[Connection, None]] = {}

    def enter(self, connection: Connection, address: str) -> Room:
        """Take a place, unless there is room for nobody; the connection waits for a request now."""
        if len(self._open) >= self._keys and self._waiting:
            self._close(next(iter(self._waiting)))
        room = Room(sum(len(self._open) >= limit for limit in (self._keys, self._probes, self._most)))
        if room is not Room.NOBODY:
            self._open[connection] = address
            self.wait(connection)
        return room

    def wait(self, connection: Connection) -> None:
        """It has no request now."""
        if (address := self._open.get(connection)) is None:
            return
        here = self._waiting_at.setdefault(address, OrderedDict())
        here[connection] = self._waiting[connection] = None
        if len(here) > self._waiting_per_address:
            self._close(next(iter(here)))

    def work(self, connection: Connection) -> None:
        """It has a request, which is being answered."""
        if connection not in self._waiting:
            return
        del self._waiting[connection]
        address = self._open[connection]
        here = self._waiting_at[address]
        del here[connection]
        if not here:
            del self._waiting_at[address]

    def leave(self, connection: Connection) -> None:
        """It is closed."""
        self.work(connection)
        self._open.pop(connection, None)

    def _close(self, connection: Connection) -> None:
        self.leave(connection)
        connection.give_way()
