"""Jobs' events as they happen: read once per process, sent to everyone who watches.

While somebody watches, a single poller asks every `poll_seconds` for the newest numbers of the watched jobs, in one
query, and reads what is new once per job into that job's channel. A watcher knows the number it has come to; it takes
what follows from the channel, or, where the channel no longer has it, from the store. So each watcher gets every event
once and in order, a slow one costs no memory, and while the database is away all of them simply wait.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import anyio
import anyio.to_thread
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from service.api.problems import Problem, unavailable
from service.api.responses import encode
from service.store import Store
from service.store.errors import Unavailable
from service.store.records import TERMINAL, Event

KEEP_ALIVE_SECONDS = 15.0
RETRY = format_sse_event(retry=1000)  # milliseconds a client waits before it connects again
KEY_CHECK_SECONDS = 2.0  # a revoked key loses its streams after this long at the latest
_KEPT = 500  # newest events of a watched job
_READ_AT_ONCE = 500
_FEW = 40  # events that are read between other work; more of them in a thread
_LONG_READS = 4  # at a time, however many connect again at once
_RETRY_SECONDS = 0.5  # before the store is asked again after it did not answer

T = TypeVar("T")
log = logging.getLogger("service.api")


class Encoded(NamedTuple):
    """An event as it goes out."""

    seq: int
    text: bytes
    is_last: bool


def encoded(event: Event) -> Encoded:
    """One server-sent event: `id` is its number, `event` its type, `data` one line of JSON."""
    epoch = {} if event.epoch is None else {"epoch": event.epoch}
    data = encode({"time": event.time, **epoch, **event.data}).decode()
    kind = re.sub(r"[^A-Za-z0-9_.-]", "_", event.type)
    is_last = event.type == "state" and event.data.get("state") in TERMINAL
    return Encoded(event.seq, format_sse_event(data_str=data, event=kind, id=str(event.seq)), is_last)


class Channel:
    """What is new about one job that somebody watches."""

    def __init__(self, position: int):
        self.position = position  # newest number read
        self.watchers = 0
        self.is_gone = False  # the job was deleted
        self.changed = asyncio.Event()
        self._recent: deque[Encoded] = deque(maxlen=_KEPT)

    def add(self, news: list[Encoded]) -> None:
        self._recent.extend(news)
        self.position = news[-1].seq
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def since(self, seq: int) -> list[Encoded] | None:
        """What follows number `seq`; none where that is no longer here."""
        if seq >= self.position:
            return []
        if not self._recent or self._recent[0].seq > seq + 1:
            return None
        return list(islice(self._recent, seq + 1 - self._recent[0].seq, None))  # numbers have no gaps


class Feed:
    """Of one process; `run` polls until it is cancelled, `close` ends all streams."""

    def __init__(
        self,
        store: Store,
        *,
        poll_seconds: float,
        max_watchers: int,
        max_per_key: int,
        on_count: Callable[[int], None] = lambda count: None,
    ):
        """`on_count` is called with the number of watchers whenever it changes."""
        self._store, self._poll_seconds, self._on_count = store, poll_seconds, on_count
        self._max_watchers, self._max_per_key = max_watchers, max_per_key
        self._owners: Counter[str] = Counter()  # of streams that are open, by the id of their key
        self._invalid: set[str] = set()  # owners whose keys are no longer good
        self._keys_due = 0.0
        self._channels: dict[str, Channel] = {}
        self._wanted = asyncio.Event()
        self._long_reads = anyio.CapacityLimiter(_LONG_READS)
        self._is_closed = False
        self.watchers = 0

    def check_room(self, owner: str | None) -> None:
        """Raises Problem: 429 where the key has as many streams as it may have, 503 where all have together, or the
        service is about to stop. Whoever needs no key has no limit but that of all."""
        if (refusal := self._refusal(owner)) is not None:
            raise refusal

    def _refusal(self, owner: str | None) -> Problem | None:
        if self._is_closed:
            return unavailable("the service is about to stop; connect again in a moment")
        if owner is not None and self._owners[owner] >= self._max_per_key:
            return Problem(
                429, f"this key has {self._max_per_key} event streams open, and may have no more "
                "(NML_MAX_WATCHERS_PER_KEY); close one, or ask for the job itself",
                headers={"Retry-After": "10"}, kind="quota",
            )  # fmt: skip
        if self.watchers >= self._max_watchers:
            return unavailable(
                "too many event streams are open; try again later, or ask for the job itself", seconds=10
            )
        return None

    async def watch(self, job_id: str, after: int, owner: str | None) -> AsyncGenerator[bytes, None]:
        """A job's events after number `after` as server-sent events, to its last, with keep-alive comments.

        Args:
            after: at most the number of the job's newest event, or the stream waits for those in between.
            owner: the id of the key that watches, without which the stream ends; none: no key is needed.
        """
        if self._refusal(owner) is not None:  # others have begun since the request was checked
            return  # it is too late for a status; the client connects again and is told
        self._count(1, owner)
        try:
            yield RETRY
            channel = await self._join(job_id, after)
            try:
                async with aclosing(self._follow(job_id, channel, after, owner)) as parts:
                    async for part in parts:
                        yield part
            finally:
                channel.watchers -= 1
                if not channel.watchers and self._channels.get(job_id) is channel:
                    del self._channels[job_id]
        finally:
            self._count(-1, owner)

    async def run(self) -> None:
        """Poll for as long as the app lives."""
        while True:
            await self._wanted.wait()
            try:
                await self._poll()
            except Unavailable:
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:
                log.exception("event streams could not be fed; trying again")
                await asyncio.sleep(_RETRY_SECONDS)
            await asyncio.sleep(self._poll_seconds)

    def close(self) -> None:
        """End every stream; clients connect again elsewhere, or here after a restart, and miss nothing."""
        self._is_closed = True
        self._wake_all()

    def _count(self, change: int, owner: str | None) -> None:
        self.watchers += change
        if owner is not None:
            self._owners[owner] += change
            if not self._owners[owner]:
                del self._owners[owner]
        self._on_count(self.watchers)

    async def _join(self, job_id: str, after: int) -> Channel:
        """The job's channel; a new one begins at the job's newest event."""
        while (channel := self._channels.get(job_id)) is None:
            try:
                newest = (await self._read(partial(self._store.events.last_seqs, [job_id]))).get(job_id, 0)
            except Unavailable:
                newest = after  # then all that follows comes from the poller, once the database is back
            if job_id not in self._channels:
                self._channels[job_id] = Channel(newest)
                self._wanted.set()
        channel.watchers += 1
        return channel

    async def _follow(self, job_id: str, channel: Channel, seq: int, owner: str | None) -> AsyncGenerator[bytes, None]:
        while not self._is_closed and owner not in self._invalid:
            changed = channel.changed
            news = channel.since(seq)
            if news is None:
                try:
                    news = await self._read(partial(self._read_after, job_id, seq), count=channel.position - seq)
                except Unavailable:
                    yield KEEPALIVE_COMMENT
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
            if news:
                yield b"".join(item.text for item in news)
                seq = news[-1].seq
                if news[-1].is_last:
                    return
                continue
            if channel.is_gone:
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield KEEPALIVE_COMMENT

    async def _poll(self) -> None:
        """Bring every channel up to date."""
        if not self._channels:
            self._wanted.clear()
            return
        await self._check_keys()
        newest = await self._read(partial(self._store.events.last_seqs, list(self._channels)))
        for job_id, channel in list(self._channels.items()):
            if job_id not in newest:
                channel.is_gone = True
                channel.wake()
            while channel.position < newest.get(job_id, 0):
                behind = newest[job_id] - channel.position
                news = await self._read(partial(self._read_after, job_id, channel.position), count=behind)
                if not news:  # deleted meanwhile
                    break
                channel.add(news)

    async def _check_keys(self) -> None:
        """End the streams of keys that were revoked or have expired."""
        if not self._owners or time.monotonic() < self._keys_due:
            return
        owners = list(self._owners)
        valid = await self._read(partial(self._store.keys.valid, owners))
        self._keys_due = time.monotonic() + KEY_CHECK_SECONDS
        self._invalid = set(owners) - valid
        if self._invalid:
            self._wake_all()

    def _wake_all(self) -> None:
        for channel in self._channels.values():
            channel.wake()

    def _read_after(self, job_id: str, seq: int) -> list[Encoded]:
        return [encoded(event) for event in self._store.events.after(job_id, seq, _READ_AT_ONCE)]

    async def _read(self, call: Callable[[], T], *, count: int = 1) -> T:
        """Where reading never waits, `count` events or fewer are read at once: that spares the way to a thread."""
        if count > _FEW:
            return await anyio.to_thread.run_sync(call, limiter=self._long_reads)
        return call() if self._store.reads_inline else await anyio.to_thread.run_sync(call)
