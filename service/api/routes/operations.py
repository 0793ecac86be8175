"""For those who run the service: is it alive, is it ready, how is it doing, and what can be asked of it."""

from __future__ import annotations

import base64
import hashlib
import re

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service.api.access import in_thread, settings_of, store_of
from service.api.edge.measures import exposition
from service.api.problems import unavailable
from service.api.readiness import Readiness
from service.api.schemas import Alive, Ready
from service.api.views import answer
from service.store.errors import Unavailable

router = APIRouter(tags=["operations"])


@router.get("/livez", response_model=Alive, operation_id="is_alive", summary="Is the process alive?")
async def livez() -> Response:
    return answer({"status": "alive"})


@router.get(
    "/readyz", response_model=Ready, operation_id="is_ready", summary="Can jobs be submitted, and will they run?"
)
async def readyz(request: Request) -> Response:
    """503 with `reasons` where the database or every dispatcher is away, or the disk is nearly full."""
    readiness: Readiness = request.app.state.readiness
    reasons = await readiness.reasons()
    if reasons:
        raise unavailable("not ready: " + "; ".join(reasons), extra={"reasons": reasons})
    return answer({"status": "ready"})


@router.get(
    "/metrics", response_class=Response, operation_id="read_metrics", summary="Figures for Prometheus",
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Also answers while the database is away; then without figures of jobs."""
    store, settings, state = store_of(request), settings_of(request), request.app.state
    figures, dispatchers = None, None
    try:
        figures = await in_thread(store.jobs.figures)
        dispatchers = len(await in_thread(store.dispatchers.alive, settings.lease_seconds))
    except Unavailable:
        pass
    state.measures.watchers.set(state.feed.watchers)
    text = await in_thread(exposition, state.measures, figures, dispatchers)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Swagger's page, with leave to load and run exactly what it needs."""
    page = get_swagger_ui_html(openapi_url="/openapi.json", title=request.app.title)
    return HTMLResponse(page.body, headers={"Content-Security-Policy": _policy(bytes(page.body).decode())})


def _policy(page: str) -> str:
    places = sorted({found[0] for found in re.finditer(r"(?<=[\"'])https://[^/\"']+", page)})
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    return (
        f"default-src 'none'; connect-src 'self'; frame-ancestors 'none'; img-src data: {' '.join(places)}; "
        f"script-src {' '.join([*places, *hashes])}; style-src 'unsafe-inline' {' '.join(places)}"
    )
