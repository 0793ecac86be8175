"""The API as an ASGI app: `create_app(settings)`, and nothing at module level.

uvicorn --factory service.app:from_environment        one process of its own; `nml serve` starts service.serve_api
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI

from service.api import openapi, problems
from service.api.edge.guard import Guard
from service.api.edge.metrics import RequestMetrics
from service.api.fast_routes import FastRoutes, routes_to
from service.api.routes import (
    aliases,
    console,
    datasets,
    embeddings,
    estimates,
    inference,
    jobs,
    operations,
    retrieval,
    scores,
    sweeps,
)
from service.api.state import open_state
from service.private_home import create_private_files
from service.settings import Settings

TAGS = [
    {"name": "jobs", "description": "Training: submit, follow, fetch."},
    {"name": "sweeps", "description": "Searches over settings."},
    {"name": "datasets", "description": "Graphs to train on."},
    {"name": "embeddings", "description": "Vectors of trained nodes: look up, search, download, embed new ones."},
    {"name": "aliases", "description": "Names that point to versions of embeddings."},
    {"name": "operations", "description": "For those who run the service."},
]


def create_app(settings: Settings, metrics: RequestMetrics | None = None) -> FastAPI:
    """The app; the database is opened, and brought up to date, when it starts.

    Args:
        metrics: what counts requests; none: for this app alone.
    """
    metrics = RequestMetrics() if metrics is None else metrics

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_state(app, settings, metrics):
            yield

    app = FastAPI(
        title="NML-GCL", version=_version(), description=openapi.DESCRIPTION, openapi_tags=TAGS, lifespan=lifespan,
        docs_url=None, redoc_url=None, redirect_slashes=False, separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: route.name,  # operation ids are the names of functions
    )  # fmt: skip
    problems.install(app)
    app.include_router(jobs.router)
    app.include_router(estimates.router)
    app.include_router(sweeps.router)
    app.include_router(retrieval.router)
    app.include_router(scores.router)
    app.include_router(inference.router)
    app.include_router(embeddings.router)
    app.include_router(aliases.router)
    app.include_router(datasets.router)
    app.include_router(operations.router)
    app.include_router(console.router)
    fast = (retrieval.get_node, retrieval.look_up, jobs.get_job, sweeps.get_sweep)
    app.add_middleware(FastRoutes, routes=routes_to(app, fast))
    app.add_middleware(Guard, settings=settings, metrics=metrics)  # added last, so outermost
    described: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        if not described:
            described.update(openapi.document(app, keys_required=settings.keys_required))
        return described

    app.openapi = describe  # type: ignore[method-assign]
    return app


def from_environment() -> FastAPI:
    """The app with settings from the environment, for uvicorn's --factory."""
    create_private_files()
    return create_app(Settings())


def _version() -> str:
    try:
        return metadata.version("nml-gcl")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0"
