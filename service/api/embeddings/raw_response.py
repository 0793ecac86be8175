"""Responses whose headers and body are bytes already, sent in pieces.

What a client has not read yet stays in memory, so the bytes of large responses are counted while they are being sent;
beyond a budget the next one is refused. Who reads nothing for a minute is cut off (`service.serve_api`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.problems import unavailable

PIECE_BYTES = 256 * 1024  # sent at a time; then the server waits until the client has read most of it
MOST_BYTES = 512 * 1024 * 1024  # of large answers per process
_RETRY = 5  # seconds

Piece = bytes | memoryview
Pairs = list[tuple[bytes, bytes]]


class BytesInFlight:
    """Bytes of large answers that are being sent by this process."""

    def __init__(self, most: int = MOST_BYTES):
        self._most, self.bytes = most, 0

    def check_room(self) -> None:
        """Raises Problem 503 if there is no room at all: before a large answer is put together in vain."""
        if self.bytes >= self._most:
            raise _full()

    @contextmanager
    def sending(self, size: int) -> Iterator[None]:
        """While an answer of this size is sent.

        Raises:
            Problem: 503, there are too many others. One alone may be of any size.
        """
        if self.bytes and self.bytes + size > self._most:
            raise _full()
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size


def _full() -> Exception:
    return unavailable("too many large answers are being sent; try again in a moment", seconds=_RETRY)


class RawResponse(Response):
    """A response whose headers and body are bytes already; starlette's own takes several times as long to make.

    Args:
        pieces: the body; several only where each is as `in_pieces` makes them.
    """

    background = None

    def __init__(self, pieces: Sequence[Piece], headers: Pairs, status: int = 200):
        self.pieces, self.raw_headers, self.status_code = pieces, headers, status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.pieces) > 1:
            await self._send_large(scope, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.pieces[0]})

    async def _send_large(self, scope: Scope, send: Send) -> None:
        in_flight: BytesInFlight = scope["app"].state.nml.in_flight
        with in_flight.sending(sum(map(len, self.pieces))):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            last = len(self.pieces) - 1
            for at, piece in enumerate(self.pieces):
                await send({"type": "http.response.body", "body": piece, "more_body": at < last})


def in_pieces(body: Iterable[Piece]) -> list[Piece]:
    """The same bytes in pieces of about PIECE_BYTES: small ones joined, large ones cut without a copy. At least one."""
    pieces: list[Piece] = []
    waiting: list[Piece] = []
    size = 0
    for piece in body:
        if size and size + len(piece) > PIECE_BYTES:
            pieces.append(b"".join(waiting))
            waiting, size = [], 0
        if len(piece) > PIECE_BYTES:
            view = memoryview(piece)
            pieces += [view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES)]
        else:
            waiting.append(piece)
            size += len(piece)
    if size or not pieces:
        pieces.append(waiting[0] if len(waiting) == 1 else b"".join(waiting))
    return pieces
