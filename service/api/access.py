"""What routes share: the app's store, settings and feed, and how code that must not block calls what does."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

from service.api.events.feed import Feed
from service.settings import Settings
from service.store import Store

P = ParamSpec("P")
T = TypeVar("T")


def store_of(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


def settings_of(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def feed_of(request: Request) -> Feed:
    feed: Feed = request.app.state.feed
    return feed


async def in_thread(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """For whatever waits: files, long reads, checks that compute for a while."""
    return await anyio.to_thread.run_sync(lambda: call(*arguments, **options))


async def in_turn(limiter: anyio.CapacityLimiter, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """For what computes or holds a lot: a few at a time, so that they leave something to everyone else."""
    return await anyio.to_thread.run_sync(lambda: call(*arguments, **options), limiter=limiter)


async def write(request: Request, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """A change of the store. SQLite takes one at a time: those who wait in line here need not try again and again."""
    return await in_turn(request.app.state.writers, call, *arguments, **options)


async def read(store: Store, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """A short read of the store: at once where reading never waits, which spares the way to a thread and back."""
    if store.reads_inline:
        return call(*arguments, **options)
    return await in_thread(call, *arguments, **options)
