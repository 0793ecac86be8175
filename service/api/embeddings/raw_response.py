"""Responses whose headers and body are bytes already, sent in pieces.

What a client has not read yet stays in memory, so the bytes of large responses are counted until they are read, but for
what a socket holds; beyond a budget, or a key's share of it, the next one is refused. Who reads nothing for a minute is
cut off (`service.serve_api`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.responses import UNCOUNTED_BYTES
from service.api.shares import Shares

PIECE_BYTES = 256 * 1024  # sent at a time; then the server waits until the client has read most of it
MOST_BYTES = 512 * 1024 * 1024  # of large answers per process
_RETRY = 5  # seconds

Piece = bytes | memoryview
Pairs = list[tuple[bytes, bytes]]


class BytesInFlight(Shares):
    """Bytes of large answers that are being sent by this process. One alone may be of any size."""

    def __init__(self, most: int = MOST_BYTES):
        super().__init__(most, most // 4, too_many="too many large answers{} are being sent", seconds=_RETRY)


class RawResponse(Response):
    """A response whose headers and body are bytes already; starlette's own takes several times as long to make.

    Args:
        pieces: the body; several only where each is as `in_pieces` makes them.
    """

    background = None

    def __init__(self, pieces: Sequence[Piece], headers: Pairs, status: int = 200):
        self.pieces, self.raw_headers, self.status_code = pieces, headers, status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = sum(map(len, self.pieces))
        if size > UNCOUNTED_BYTES:
            in_flight: BytesInFlight = scope["app"].state.nml.in_flight
            with in_flight.take(size):
                await self._send(send)
        else:
            await self._send(send)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = len(self.pieces) - 1
        for at, piece in enumerate(self.pieces):
            # copied, or a few bytes that a client leaves unread would keep the whole array that they are cut from
            await send({"type": "http.response.body", "body": bytes(piece), "more_body": at < last})


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
