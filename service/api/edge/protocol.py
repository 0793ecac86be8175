"""HTTP/1.1 as uvicorn reads it, with bounds on what a client may make it hold before anyone asks who that is.

uvicorn keeps header lines in memory for as long as they come. Here a head, or the lines after a chunked body, may have
so many bytes and lines, must be complete in time, and only so many requests and connections may wait.

Nor does it ever leave a client that stops reading: an answer waits, with the files it is made of, and a connection that
is closed stays open until the rest is sent. Here who takes nothing for a minute is cut off; who takes little is not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import sys
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 65_536
HEAD_LINES = 200
HEAD_SECONDS = 20.0
MOST_PIPELINED = 100  # requests sent ahead on one connection; each is held until those before it are answered
LOOK_SECONDS = 15.0  # between looks at how much a client has taken
MOST_LOOKS = 4  # that find nothing taken; not seconds, since a machine that stood still has asked nobody
_ACKNOWLEDGED = slice(120, 128)  # tcpi_bytes_acked in Linux's struct tcp_info
_RESET = struct.pack("ii", 1, 0)  # struct linger: what the system still holds for the client goes at once, too

log = logging.getLogger("service.api")


class BoundedHttp(HttpToolsProtocol):
    """One connection. With uvicorn's `limit_concurrency`, so many connections less one are taken."""

    _bare = 0  # bytes since there was a complete head or a piece of a body
    _moved = False  # whether there was either in the piece just read
    _complete: object = None  # scope of the newest request whose head is complete
    _head_timer: asyncio.TimerHandle | None = None
    _refusal: tuple[int, str] | None = None  # why the parser was stopped
    _before: tuple[RequestResponseCycle, ...] = ()  # requests that another was sent after before they were answered
    _look_timer: asyncio.TimerHandle | None = None
    _seen: tuple[int, int] | None = None  # `_waiting` at the last look
    _looks = 0  # in a row that have found the same

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # one less, because at its limit uvicorn would answer requests of those who are in already
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency - 1:
            self.transport = transport
            self._refuse(503, "too many connections are open; try again in a moment")
            return
        super().connection_made(transport)
        self._expect_head()
        self._look_timer = self.loop.call_later(LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for cycle in self._before:  # uvicorn tells the newest only; the others would go on for nobody
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while len(data) > (room := HEAD_BYTES - self._bare):
            self._take(data[:room])
            data = data[room:]
            if self.transport.is_closing():
                return
        self._take(data)
        # Idle, so what came is no request: a piece of a head, or the body of one that was answered without it. uvicorn
        # has stopped its own timer.
        if self.scope is not self._complete or self._is_idle():
            self._expect_head()

    def _take(self, piece: bytes) -> None:
        self._moved = False
        super().data_received(piece)
        self._bare = 0 if self._moved else self._bare + len(piece)
        if self._bare >= HEAD_BYTES or (self.headers is not None and len(self.headers) > HEAD_LINES):
            self._refuse(431, _TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._moved, self._complete = True, self.scope
        if self._head_timer is not None:
            self._head_is_there()
        if len(self.headers) > HEAD_LINES:
            self._stop_parser(431, _TOO_LARGE)
        if len(self.pipeline) >= MOST_PIPELINED:
            self._stop_parser(400, f"more than {MOST_PIPELINED} requests were sent ahead; wait for answers")
        if not self._is_idle():
            self._before = (*(cycle for cycle in self._before if not cycle.response_complete), self.cycle)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser stops, be it at our word."""
        self._refuse(*(self._refusal or (400, "the request is not HTTP")))

    def _stop_parser(self, status: int, detail: str) -> None:
        self._refusal = status, detail
        raise ValueError(detail)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer, if that is still possible, and close."""
        if self.transport.is_closing():
            return
        title = HTTPStatus(status).phrase
        body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail})
        retry = "Retry-After: 2\r\n" if status == 503 else ""
        self.transport.write(
            f"HTTP/1.1 {status} {title}\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n{body}".encode()
        )
        self.transport.close()

    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_idle():  # the head of a request sent ahead, which nobody reads now
            self._expect_head()
        elif self.scope is not self._complete:
            self._refuse(408, f"the head of the request was not complete after {HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def _look(self) -> None:
        """Cut off a client that leaves lying what it was sent, be the connection closing already or not.

        Once in a while for each connection, rather than whenever something is written: answers are many.
        """
        before, self._seen = self._seen, self._waiting()
        self._looks = self._looks + 1 if self._seen is not None and self._seen == before else 0
        if self._looks < MOST_LOOKS:
            self._look_timer = self.loop.call_later(LOOK_SECONDS, self._look)
            return
        self._look_timer = None
        log.warning("a client has read nothing for %g s; its connection is cut", MOST_LOOKS * LOOK_SECONDS)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _waiting(self) -> tuple[int, int] | None:
        """Bytes that wait to be sent, and how many the client's system has ever acknowledged; None if nothing waits.

        The first alone would not do: of what a slow client takes it shows only megabytes, for the system keeps some.
        """
        size = self.transport.get_write_buffer_size()
        if not size:
            return None
        if sys.platform != "linux":
            return size, 0
        try:
            info = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        except OSError:  # no TCP
            return size, 0
        return size, int.from_bytes(info[_ACKNOWLEDGED], sys.byteorder)


_TOO_LARGE = f"the head of a request may have {HEAD_BYTES:,} bytes and {HEAD_LINES} lines"
