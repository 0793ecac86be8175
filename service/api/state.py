"""What all routes share: one typed object, made when the app starts, closed when it stops.

A route asks for it with `state: State`; code that has only the request calls `state_of(request)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, ParamSpec, TypeVar

import anyio
from fastapi import Depends, FastAPI, Request

from service.api import threads
from service.api.edge.metrics import RequestMetrics
from service.api.embeddings.bounded_pool import BoundedPool
from service.api.embeddings.catalog import Catalog
from service.api.embeddings.downloads import TableFiles
from service.api.embeddings.raw_response import BytesInFlight
from service.api.events import Feed
from service.api.readiness import Readiness
from service.api.security import Keyring
from service.api.shares import Shares
from service.api.shutdown import on_stop_signal
from service.datasets.in_progress import UploadsInProgress
from service.embeddings.parquet_room import ParquetRoom
from service.encoder.client import MAX_WAITING, EncoderClient
from service.settings import Settings
from service.store import Store, open_store

_WRITERS = 20  # at a time, where the database takes several
_GATHERS = 4
_INFERENCES = MAX_WAITING + 1  # one of them is being answered
_BUSY_ENCODER = "too many requests{} for new nodes or classes are waiting"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class AppState:
    """Of one app, from its start to its stop."""

    settings: Settings
    store: Store
    metrics: RequestMetrics
    keyring: Keyring
    readiness: Readiness
    feed: Feed  # of events
    uploads: UploadsInProgress  # of data sets
    catalog: Catalog  # of embedding versions
    tables: TableFiles  # whole tables as files
    in_flight: BytesInFlight  # bytes of large answers
    encoder: EncoderClient  # embeds new nodes, classifies
    searches: BoundedPool
    gathers: BoundedPool  # large answers
    parses: BoundedPool  # long JSON bodies
    writers: anyio.CapacityLimiter
    checks: anyio.CapacityLimiter  # of uploads
    series: BoundedPool  # long ones that are read
    inferences: Shares  # questions for the encoder, which has a queue of its own

    async def read(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """A short read of the store."""
        return await threads.read(self.store, call, *arguments, **options)

    async def write(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """A change of the store. SQLite takes one at a time: requests that queue here need not retry there."""
        return await threads.limited(self.writers, call, *arguments, **options)


def state_of(request: Request) -> AppState:
    """The state of the request's app."""
    state: AppState = request.scope["app"].state.nml
    return state


async def _get_state(request: Request) -> AppState:  # async, or FastAPI would call it in a thread
    return state_of(request)


State = Annotated[AppState, Depends(_get_state)]


@asynccontextmanager
async def open_state(app: FastAPI, settings: Settings, metrics: RequestMetrics) -> AsyncIterator[None]:
    """Open the database, brought up to date, and all that stands on it; close them at the end."""
    store = await asyncio.to_thread(open_store, settings)
    feed = Feed(
        store, poll_seconds=settings.poll_seconds, max_watchers=settings.max_watchers,
        max_per_key=settings.max_watchers_per_key, on_count=metrics.watchers.set,
    )  # fmt: skip
    state = AppState(
        settings=settings, store=store, metrics=metrics, keyring=Keyring(store), readiness=Readiness(store, settings),
        feed=feed, uploads=UploadsInProgress(), catalog=Catalog(store, settings),
        tables=TableFiles(ParquetRoom(settings.parquet_bytes, settings.min_free_bytes)),
        in_flight=BytesInFlight(), encoder=_encoder(settings), gathers=BoundedPool(_GATHERS),
        searches=BoundedPool(settings.search_concurrency),
        parses=BoundedPool(1), writers=anyio.CapacityLimiter(1 if store.reads_inline else _WRITERS),
        checks=anyio.CapacityLimiter(2), series=BoundedPool(2),
        inferences=Shares(_INFERENCES, _INFERENCES // 4, too_many=_BUSY_ENCODER, seconds=5),
    )  # fmt: skip
    app.state.nml = state
    polling = [asyncio.create_task(task) for task in (feed.run(), state.catalog.run())]
    try:
        with on_stop_signal(feed.close):
            yield
    finally:
        feed.close()
        for task in polling:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await state.encoder.close()
        state.catalog.close()
        store.close()


def _encoder(settings: Settings) -> EncoderClient:
    return EncoderClient(
        settings.home, address=settings.encoder_address, token=settings.encoder_token,
        seconds=settings.inference_seconds, idle_seconds=settings.inference_idle_seconds,
    )  # fmt: skip
