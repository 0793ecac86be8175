"""The HTTP interface of an encoder server (service.encoder.messages), whoever computes the answers."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from service.encoder.messages import MAX_QUESTION_BYTES, Question, describe
from trainer.errors import InvalidInput

BODY_SECONDS = 60.0  # for the body of a request to arrive

Seconds = Annotated[float, Query(gt=0, allow_inf_nan=False)]


def create_app(
    answer: Callable[[Question], Awaitable[bytes]], *, token: str | None = None, lifespan: Any = None
) -> FastAPI:
    """An app that answers questions.

    Args:
        answer: computes; it is cancelled when the client disconnects.
        token: what clients must send as bearer; none: whoever reaches the socket may ask.
    """

    def authenticate(authorization: Annotated[str, Header()] = "") -> None:
        expected = f"Bearer {token}"
        if token is not None and not hmac.compare_digest(authorization.encode(), expected.encode()):
            raise HTTPException(401, "wrong token. API and encoder need the same NML_ENCODER_TOKEN")

    app = FastAPI(openapi_url=None, lifespan=lifespan, dependencies=[Depends(authenticate)])

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/{operation}")
    async def ask(
        request: Request, operation: Literal["embed", "classify"], version: str, seconds: Seconds,
        idle_seconds: Seconds,
    ) -> Response:  # fmt: skip
        try:
            question = Question(version, operation, await _body(request), seconds, idle_seconds)
            return Response(await _while_connected(request, answer(question)), media_type="application/octet-stream")
        except ClientDisconnect:
            return Response(status_code=499)  # which nobody reads
        except Exception as error:
            status, detail = describe(error)
            return JSONResponse({"detail": detail}, status)

    return app


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MAX_QUESTION_BYTES:
                    raise InvalidInput(f"more than {MAX_QUESTION_BYTES:,} bytes. Send fewer nodes or labels at a time.")
                parts.append(part)
    except TimeoutError:
        raise TimeoutError(f"the request did not arrive within {BODY_SECONDS:g} seconds") from None
    return b"".join(parts)


async def _while_connected(request: Request, answer: Awaitable[bytes]) -> bytes:
    """The answer. Raises ClientDisconnect, and cancels it, if nobody waits for it any more."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    computing, leaving = asyncio.ensure_future(answer), asyncio.create_task(disconnected())
    try:
        await asyncio.wait((computing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not computing.done():
            raise ClientDisconnect
        return computing.result()
    finally:
        computing.cancel()
        leaving.cancel()
