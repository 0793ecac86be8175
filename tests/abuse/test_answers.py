"""Large answers that are asked for and read slowly, or not at all, to keep others from theirs."""

from __future__ import annotations

import asyncio
import json
import socket
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.types import Message

from service.api import files
from service.api.embeddings.raw_response import MOST_BYTES, PIECE_BYTES, BytesInFlight, RawResponse, in_pieces
from service.api.embeddings.responses import raw
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import SMALL, Live
from tests.service.api.test_events import until
from tests.service.api.test_limits import bearer
from tests.service.api.test_problems import checked

JSON, RAW = "application/json", "application/octet-stream"
WIDE = 1_000
ASKED = {"ids": [0] * 10_000}
ANSWER = 4 * WIDE * len(ASKED["ids"])  # bytes: 40 MB, more than any socket keeps
ALONE = MOST_BYTES // 2  # what one key may have while there is nobody else


def ask_and_wait(live: Live, path: str, key: dict[str, str]) -> socket.socket:
    """A client that has the head of its answer, and reads no further."""
    method, body = ("POST", json.dumps(ASKED).encode()) if path.endswith("lookup") else ("GET", b"")
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {RAW}\r\nContent-Type: {JSON}\r\n"
    head += f"Content-Length: {len(body)}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in key.items())
    link = socket.create_connection(("127.0.0.1", live.http.base_url.port), timeout=120)
    link.sendall(head.encode() + b"\r\n" + body)
    assert link.recv(1_024).startswith(b"HTTP/1.1 200 ")
    return link


def test_one_key_cannot_take_all_room_for_large_answers(serve: Callable[..., Live]) -> None:
    live = serve(require_key=True)
    path = f"/v1/embeddings/{put_version(live.store, live.settings, 20, WIDE).info.version}/lookup"
    greedy, other = bearer(live, "read"), bearer(live, "read")
    with ExitStack() as stack:
        for _ in range(ALONE // ANSWER):
            stack.enter_context(ask_and_wait(live, path, greedy))
        refused = live.http.post(path, json=ASKED, headers=greedy | {"Accept": RAW})
        assert "this key" in checked(refused, 429).detail
        assert int(refused.headers["retry-after"]) > 0
        assert live.http.post(path, json={"ids": [0]}, headers=greedy).status_code == 200, "small ones are answered"
        assert len(live.http.post(path, json=ASKED, headers=other | {"Accept": RAW}).content) == ANSWER
    until(lambda: live.state.in_flight.taken == 0)
    assert live.http.post(path, json=ASKED, headers=greedy | {"Accept": RAW}).status_code == 200


def test_logs_and_lists_are_counted_until_they_are_read(
    serve: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has them in one piece. This one is larger than a socket keeps, and than a log may be."""
    monkeypatch.setattr(files, "MAX_LOG_BYTES", ANSWER)
    live = serve(require_key=True)
    in_flight = BytesInFlight(3 * ANSWER)
    live.app.state.nml = replace(live.state, in_flight=in_flight)
    greedy, other = bearer(live, "submit"), bearer(live, "read")
    job_id = live.http.post("/v1/jobs", json=SMALL, headers=greedy).json()["id"]
    folder = live.settings.job_directory(job_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "output.txt").write_bytes((b"x" * 9_999 + b"\n") * (ANSWER // 10_000))
    path = f"/v1/jobs/{job_id}/log"
    with ask_and_wait(live, f"{path}?tail=10000", greedy):
        until(lambda: in_flight.taken == ANSWER)
        refused = live.http.get(path, params={"tail": 10_000}, headers=greedy)
        assert checked(refused, 429).type.endswith("quota")
        assert len(live.http.get(path, params={"tail": 10_000}, headers=other).content) == ANSWER
        assert in_flight.taken == ANSWER
    until(lambda: in_flight.taken == 0)


def test_a_little_that_is_left_unread_does_not_keep_all_of_an_answer() -> None:
    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    sent: list[Any] = []
    vectors = np.ones(PIECE_BYTES, np.float32)
    kept = weakref.ref(vectors)
    response = RawResponse(in_pieces([raw(vectors)]), [])
    scope = {"app": SimpleNamespace(state=SimpleNamespace(nml=SimpleNamespace(in_flight=BytesInFlight())))}
    del vectors
    asyncio.run(response(scope, send, send))
    del response
    assert len(b"".join(sent)) == 4 * PIECE_BYTES
    assert kept() is None
