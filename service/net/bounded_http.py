"""uvicorn's HTTP/1.1 connection, with limits on what a client may send before anyone asks who that is.

uvicorn has no option for any of these with httptools (h11 has one, and is several times slower): it keeps header lines
for as long as they come, waits for them for ever, and queues any number of pipelined requests.
A client that stops reading is the kernel's to cut off: see TCP_USER_TIMEOUT in service.serve_api.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from service.net.places import Places, Room

HEAD_BYTES = 65_536
HEAD_SECONDS = 20.0
ROOM = "nml.room"  # key of the ASGI scope: for whom there is room
MOST_PIPELINED = 100  # requests sent ahead on one connection; each is held until those before it are answered


def bounded_http(places: Places) -> type[BoundedHttp]:
    """The protocol for a server whose connections share `places`. Instead of uvicorn's `limit_concurrency`."""
    return type("BoundedHttp", (BoundedHttp,), {"_places": places})


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    _places: Places | None = None  # none: as many as come
    _room = Room.ANYONE
    _unparsed = 0  # bytes since the last complete head or piece of a body
    _progressed = False  # whether there was either in the piece just read
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _refusal = (400, "the request is not HTTP")
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._places is not None:
            self._room = self._places.enter(self, (get_remote_addr(transport) or ("unknown",))[0])
        if self._room is Room.NOBODY:
            self.transport = transport
            self._refuse(503, "too many connections are open; try again in a moment")
            return
        super().connection_made(transport)
        self._start_head_timer()

    def give_way(self) -> None:
        """Close for a newcomer, also if the client has not read its last answer."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._places is not None:
            self._places.leave(self)
        if self._running is not None:  # uvicorn tells the newest request only, which may be a pipelined one
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            piece, data = data[: HEAD_BYTES - self._unparsed], data[HEAD_BYTES - self._unparsed :]
            self._progressed = False
            super().data_received(piece)
            self._unparsed = 0 if self._progressed else self._unparsed + len(piece)
            if self._unparsed >= HEAD_BYTES:
                self._refuse(431, f"the head of a request may have {HEAD_BYTES:,} bytes")
        if self._is_idle():  # so this was part of a head, or of a body whose request was answered without it
            self._start_head_timer()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        self.scope[ROOM] = self._room  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._progressed, self._in_head = True, False
        self._stop_head_timer()
        if len(self.pipeline) >= MOST_PIPELINED:
            self._refusal = 400, f"more than {MOST_PIPELINED} requests were sent ahead; wait for answers"
            raise ValueError("too many pipelined requests")  # stops the parser, which calls send_400_response
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if self._places is not None:
            self._places.work(self)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._places is not None and self._is_idle():
            self._places.wait(self)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer with a problem document, if that is still possible, and close."""
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

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(408, f"the head of the request was not complete after {HEAD_SECONDS:g} s")
        else:
            self.transport.close()
