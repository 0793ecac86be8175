"""For operators: probes, metrics, and the documentation page."""

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
from service.api.state import State
from service.api.threads import in_thread
from service.store.errors import Unavailable

_DISK_SECONDS = 2.0
router = APIRouter(tags=["operations"])


@router.get("/livez", response_model=Alive, summary="Is the process alive?")
async def is_alive() -> Response:
    return json_response({"status": "alive"})


@router.get("/readyz", response_model=Ready, summary="Can jobs be submitted, and will they run?")
async def is_ready(state: State) -> Response:
    """503 with `reasons` if the database is away or damaged, if there is no dispatcher, or if the disk is nearly full,
    read-only or out of inodes. Each says what to do."""
    reasons = await state.readiness.reasons()
    if reasons:
        raise unavailable("not ready: " + "; ".join(reasons), extra={"reasons": reasons})
    return json_response({"status": "ready"})


@router.get(
    "/metrics", response_class=Response, summary="Metrics for Prometheus",
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)  # fmt: skip
async def read_metrics(request: Request, state: State) -> Response:
    """Also answers while the database is away, then without the metrics of jobs."""
    figures, dispatchers = None, None
    try:
        figures = await in_thread(state.store.jobs.figures)
        dispatchers = len(await in_thread(state.store.dispatchers.alive, state.settings.lease_seconds))
    except Unavailable:
        pass
    status = ServiceStatus(request.app.version, figures, dispatchers, await _free_bytes(state.readiness))
    text = await in_thread(exposition, state.metrics, status)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _free_bytes(readiness: Readiness) -> int | None:
    """None if the disk cannot be read in time: a network file system may block for ever."""
    with anyio.move_on_after(_DISK_SECONDS):
        return await anyio.to_thread.run_sync(readiness.free_bytes, abandon_on_cancel=True)
    return None


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The OpenAPI document as a page."""
    return HTMLResponse(docs_page.page(request.app.openapi()), headers={"Content-Security-Policy": docs_page.POLICY})
