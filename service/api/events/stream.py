"""An answer that goes on for as long as its job does (text/event-stream)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_STALLED_SECONDS = 60.0  # a client that takes nothing for so long is let go; it may connect again
_MEDIA_TYPE = "text/event-stream; charset=utf-8"

log = logging.getLogger("service.api")


class EventStream(Response):
    """Sends parts as they come, until they end or the client leaves."""

    def __init__(self, parts: AsyncGenerator[bytes, None]):
        super().__init__(media_type=_MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})  # nginx would hold it back
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with anyio.create_task_group() as group:
            group.start_soon(_until_gone, receive, group.cancel_scope)
            await self._send_parts(send)
            group.cancel_scope.cancel()

    async def _send_parts(self, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            async for part in parts:
                with anyio.move_on_after(_STALLED_SECONDS) as patience:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                if patience.cancelled_caught:
                    log.info("an event stream was cut off: its client took nothing for %g s", _STALLED_SECONDS)
                    return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
