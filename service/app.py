"""The API as an ASGI app: `create_app(settings)`, and nothing at module level.

uvicorn --factory service.app:from_environment        one process of its own; `nml serve` starts service.serve_api
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from typing import Any

import anyio
from fastapi import FastAPI

from service.api import openapi, problems
from service.api.direct import DirectRoute
from service.api.edge.guard import Guard
from service.api.edge.measures import Measures
from service.api.events.feed import Feed
from service.api.readiness import Readiness
from service.api.routes.aliases import add_aliases
from service.api.routes.datasets import router as datasets
from service.api.routes.embeddings import add_versions
from service.api.routes.inference import add_inference
from service.api.routes.jobs import add_jobs
from service.api.routes.operations import router as operations
from service.api.routes.retrieval import add_retrieval
from service.api.routes.sweeps import add_sweeps
from service.api.security import Keyring
from service.api.shutdown import told_of_stop
from service.api.vectors.catalogue import Catalogue
from service.api.vectors.files import Tables
from service.api.vectors.sending import InFlight
from service.api.vectors.turns import Turns
from service.datasets.underway import Underway
from service.inference import Inference
from service.settings import Settings
from service.store import open_store

_WRITERS = 20  # at a time, where the database takes several
_CHECKS, _CURVES = 2, 2  # uploads that are checked, and long series that are read, at a time
_GATHERS = 4  # large answers that are put together at a time
TAGS = [
    {"name": "jobs", "description": "Training: submit, follow, fetch."},
    {"name": "sweeps", "description": "Searches over settings."},
    {"name": "datasets", "description": "Graphs to train on."},
    {"name": "embeddings", "description": "Vectors of trained nodes: look up, search, download, embed new ones."},
    {"name": "aliases", "description": "Names that point to versions of embeddings."},
    {"name": "operations", "description": "For those who run the service."},
]


def create_app(settings: Settings, measures: Measures | None = None) -> FastAPI:
    """The app; the database is opened, and brought up to date, when it starts.

    Args:
        measures: what counts requests; none: for this app alone.
    """
    measures = Measures() if measures is None else measures
    app = FastAPI(
        title="NML-GCL", version=_version(), description=openapi.DESCRIPTION, openapi_tags=TAGS, lifespan=_lifespan,
        docs_url=None, redoc_url=None, redirect_slashes=False, separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.settings, app.state.measures = settings, measures
    problems.install(app)
    add_retrieval(app.router)  # first: asked most
    add_jobs(app.router)  # not include_router: FastAPI would look for a route twice
    add_sweeps(app.router)
    add_inference(app.router)
    add_versions(app.router)
    add_aliases(app.router)
    app.include_router(datasets)
    app.include_router(operations)
    direct = [route for route in app.routes if isinstance(route, DirectRoute)]
    app.add_middleware(Guard, settings=settings, measures=measures, state=app.state, direct=direct)
    described: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        if not described:
            described.update(openapi.document(app, keys_required=settings.keys_required))
        return described

    app.openapi = describe  # type: ignore[method-assign]
    return app


def from_environment() -> FastAPI:
    """The app with settings from the environment, for uvicorn's --factory."""
    return create_app(Settings())


def _version() -> str:
    try:
        return metadata.version("nml-gcl")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0"


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    store = await asyncio.to_thread(open_store, settings)
    note = app.state.measures.watchers.set
    feed = Feed(store, poll_seconds=settings.poll_seconds, max_watchers=settings.max_watchers, note=note)
    app.state.store, app.state.feed = store, feed
    app.state.writers = anyio.CapacityLimiter(1 if store.reads_inline else _WRITERS)
    app.state.checks, app.state.curves = anyio.CapacityLimiter(_CHECKS), anyio.CapacityLimiter(_CURVES)
    app.state.uploads_underway = Underway()
    app.state.catalogue, app.state.inference = Catalogue(store, settings), Inference(settings)
    app.state.searches, app.state.gathers = Turns(settings.search_concurrency), Turns(_GATHERS)
    app.state.parses, app.state.in_flight, app.state.tables = Turns(1), InFlight(), Tables()
    app.state.keyring, app.state.readiness = Keyring(store), Readiness(store, settings)
    polling = [asyncio.create_task(task) for task in (feed.run(), app.state.catalogue.run())]
    try:
        with told_of_stop(feed.close):
            yield
    finally:
        feed.close()
        for task in polling:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await app.state.inference.close()
        app.state.catalogue.close()
        store.close()
