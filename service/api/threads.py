"""How code on the event loop calls what blocks or computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from service.store import Store

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """For whatever blocks: files, long reads, checks that compute for a while."""
    return await anyio.to_thread.run_sync(lambda: call(*arguments, **options))


async def limited(limiter: anyio.CapacityLimiter, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """As `in_thread`, for what computes or holds a lot: only as many at a time as the limiter allows."""
    return await anyio.to_thread.run_sync(lambda: call(*arguments, **options), limiter=limiter)


async def read(store: Store, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """A short read of the store: at once where reading never blocks, which saves the way to a thread and back."""
    if store.reads_inline:
        return call(*arguments, **options)
    return await in_thread(call, *arguments, **options)
