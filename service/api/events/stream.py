"""An answer that goes on for as long as its job does (text/event-stream).

Who takes nothing of it for a minute is cut off (`service.api.edge.protocol`), and may connect again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_MEDIA_TYPE = "text/event-stream; charset=utf-8"


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
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
