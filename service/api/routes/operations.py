"""For those who run the service: is it alive, is it ready, how is it doing, and what can be asked of it."""

from __future__ import annotations

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service.api import docs_page
from service.api.edge.metrics import ServiceStatus, exposition
from service.api.problems import unavailable
from service.api.readiness import Readiness
from service.api.responses import json_response
from service.api.schemas import Alive, Ready
from service.api.state import state_of
from service.api.threads import in_thread
from service.store.errors import Unavailable

_DISK_SECONDS = 2.0
router = APIRouter(tags=["operations"])


@router.get("/livez", response_model=Alive, operation_id="is_alive", summary="Is the process alive?")
async def livez() -> Response:
    return json_response({"status": "alive"})


@router.get(
    "/readyz", response_model=Ready, operation_id="is_ready", summary="Can jobs be submitted, and will they run?"
)
async def readyz(request: Request) -> Response:
    """503 with `reasons` where the database or every dispatcher is away, or the disk is nearly full."""
    readiness = state_of(request).readiness
    reasons = await readiness.reasons()
    if reasons:
        raise unavailable("not ready: " + "; ".join(reasons), extra={"reasons": reasons})
    return json_response({"status": "ready"})


@router.get(
    "/metrics", response_class=Response, operation_id="read_metrics", summary="Figures for Prometheus",
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Also answers while the database is away; then without figures of jobs."""
    store, settings, state = state_of(request).store, state_of(request).settings, state_of(request)
    figures, dispatchers = None, None
    try:
        figures = await in_thread(store.jobs.figures)
        dispatchers = len(await in_thread(store.dispatchers.alive, settings.lease_seconds))
    except Unavailable:
        pass
    around = ServiceStatus(request.app.version, figures, dispatchers, await _free_bytes(state.readiness))
    text = await in_thread(exposition, state.metrics, around)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _free_bytes(readiness: Readiness) -> int | None:
    """None where the disk cannot be read, or lets us wait: a network file system may do so for ever."""
    with anyio.move_on_after(_DISK_SECONDS):
        return await anyio.to_thread.run_sync(readiness.free_bytes, abandon_on_cancel=True)
    return None


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """What can be asked, for people."""
    return HTMLResponse(docs_page.page(request.app.openapi()), headers={"Content-Security-Policy": docs_page.POLICY})
