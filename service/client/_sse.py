"""Server-sent events (the WHATWG's text/event-stream): bytes to events, across lost connections.

Parsed here rather than by httpx-sse, which would be one more dependency of every client for these forty lines.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import httpx

from service.client._documents import TERMINAL, Event
from service.client._errors import ApiError, Unreachable
from service.client._session import CONNECT_SECONDS, FIRST_PAUSE, Session

SILENCE_SECONDS = 60.0  # the service speaks, if only a comment, far more often; then the connection is dead
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a \r that ends a piece may be half of \r\n


@dataclass(frozen=True)
class Message:
    """One message, or a `retry:` on its own (then without data)."""

    id: str | None
    type: str
    data: str | None
    retry_seconds: float | None = None


def messages(pieces: Iterable[bytes]) -> Iterator[Message]:
    """Complete messages; one that the end of the stream cuts off is left out, as the standard says."""
    name, type_, data, retry = None, "message", list[str](), None
    for line in _lines(pieces):
        if not line:
            if data or retry is not None:
                yield Message(name, type_, "\n".join(data) if data else None, retry)
            name, type_, data, retry = None, "message", [], None
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "id":
                name = value
            case "event":
                type_ = value
            case "data":
                data.append(value)
            case "retry" if value.isascii() and value.isdigit():
                retry = int(value) / 1000


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Not str.splitlines: that also splits at U+2028 and others, which JSON may hold."""
    rest = b""
    for piece in pieces:
        *lines, rest = _LINE_END.split(rest + piece)
        yield from (line.decode("utf-8", errors="replace") for line in lines)
    if rest.endswith(b"\r"):
        yield rest[:-1].decode("utf-8", errors="replace")


def follow(session: Session, path: str, after: int) -> Iterator[Event]:
    """Every event after seq `after`, once each and in order, until the job's last; connects again as often as needed.

    Raises:
        ApiError: the service refuses, for example because the job was deleted.
        Unreachable: no connection for as long as patience lasts.
    """
    patience, last, pause = session.patience(), after, FIRST_PAUSE
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    while True:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", "Last-Event-ID": str(last)}
        try:
            with session.opened("GET", path, headers=headers, timeout=timeout) as response:
                patience.reset()
                if response.status_code == httpx.codes.NO_CONTENT:  # it has ended, and all was told before `last`
                    return
                for message in messages(response.iter_bytes()):
                    pause = message.retry_seconds or pause
                    event = _event(message)
                    if event is None or event.seq <= last:
                        continue
                    last = event.seq
                    yield event
                    if event.type == "state" and event.data.get("state") in TERMINAL:
                        return
        except (ApiError, Unreachable) as error:
            patience.pause(error, pause)
            continue
        time.sleep(pause)  # closed in good order, for a restart


def _event(message: Message) -> Event | None:
    """None for what is no event of a job: a `retry:`, a sign of life."""
    if message.data is None or message.id is None or not message.id.isdigit():
        return None
    data = json.loads(message.data)
    return Event(int(message.id), message.type, data if isinstance(data, dict) else {"value": data})
