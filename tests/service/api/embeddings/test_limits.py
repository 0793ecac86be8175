"""What one client may make a process hold or do: long questions, large answers, files that take a while."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service import serve_api
from service.api.embeddings import downloads, request_body
from service.api.embeddings.raw_response import PIECE_BYTES, BytesInFlight, in_pieces
from service.api.embeddings.schemas import Classify, Embed, Lookup, Neighbors
from service.api.problems import Problem
from tests.service.api.embeddings.published import fields_of, put_version
from tests.service.api.server import Live
from tests.service.api.test_events import until

JSON, RAW, NPY = "application/json", "application/octet-stream", "application/x-npy"
WIDE = 1_000  # numbers of a vector; 10,000 of them are 40 MB, more than any socket keeps


@pytest.fixture(scope="module")
def wide(shared: Live) -> str:
    return put_version(shared.store, shared.settings, 20, WIDE).info.version


class Noting(BytesInFlight):
    """Remembers how much it was: what is given up is counted for a moment only."""

    highest = 0

    @contextmanager
    def take(self, amount: int = 1, *, must: bool = False) -> Iterator[None]:
        with super().take(amount, must=must):
            self.highest = max(self.highest, self.taken)
            yield


def hung_up_later(live: Live, version: str) -> socket.socket:
    """A client that asks for 40 MB and reads none of it."""
    client = socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1].strip("/"))))
    body = json.dumps({"ids": [0] * 10_000}).encode()
    head = f"POST /v1/embeddings/{version}/lookup HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {RAW}\r\n"
    head += f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


@pytest.mark.parametrize("model", [Lookup, Neighbors, Classify, Embed])
@pytest.mark.parametrize("value", [b"0,", b"[],", b"{},", b'"a":0,', b"[[[]]],"])
def test_too_many_values_are_refused_before_they_are_read(model: Any, value: bytes) -> None:
    """Neither text is JSON, which shows only to those who read it."""
    for count, status in ((request_body.MOST_VALUES // 10, 400), (request_body.MOST_VALUES, 422)):
        with pytest.raises(Problem) as refused:
            request_body.parse(model, b'{"ids": [' + value * count)
        assert refused.value.status == status
    assert "320,000" in refused.value.detail


@pytest.mark.parametrize(
    "before, after, field",
    [(b"{", b"}", "body"), (b'{"ids": [1], "filter": {', b"}}", "filter")],
    ids=["top", "nested"],
)
def test_unknown_keys_by_the_thousand_are_one_mistake(
    shared: Live, wide: str, before: bytes, after: bytes, field: str
) -> None:
    text = before + b",".join(b'"%d":0' % number for number in range(100_000)) + after
    answer = shared.http.post(f"/v1/embeddings/{wide}/neighbors", content=text, headers={"Content-Type": JSON})
    assert fields_of(answer) == [field]
    assert "100,000 keys" in answer.json()["detail"]


def test_every_question_has_a_limit_of_its_own(shared: Live, wide: str) -> None:
    def status(question: str, size: int, kind: str = JSON, *, announced: bool = True) -> int:
        text = b'{"x":"' + b"y" * (size - 8) + b'"}'
        content: Any = text if announced else iter([text])
        path = f"/v1/embeddings/{wide}/{question}"
        return shared.http.post(path, content=content, headers={"Content-Type": kind}).status_code

    for announced in (True, False):
        assert status("lookup", 1_900_000, announced=announced) == 422
        assert status("lookup", 2_100_000, announced=announced) == 413
        assert status("neighbors", 7_900_000, announced=announced) == 422
        assert status("neighbors", 8_100_000, announced=announced) == 413
    assert status("classify", 8_100_000) == 413
    assert status("neighbors", 8_000_001, RAW) == 422  # not as many bytes as vectors have, but not too many
    assert status("neighbors", 8_100_000, RAW) == 413  # more than 1,000 vectors have, even in float64
    long = shared.http.post(
        f"/v1/embeddings/{wide}/neighbors", content=b" " * 8_100_000, headers={"Content-Type": JSON}
    )
    assert NPY in long.json()["detail"]


def test_large_answers_as_json_name_the_form_that_holds_more(shared: Live, wide: str) -> None:
    asked = {"ids": [0] * 10_000}
    answer = shared.http.post(f"/v1/embeddings/{wide}/lookup", json=asked)
    assert fields_of(answer) == ["ids"]
    assert NPY in answer.json()["detail"]
    found = shared.http.post(f"/v1/embeddings/{wide}/lookup", json=asked, headers={"Accept": RAW})
    vector = shared.http.get(f"/v1/embeddings/{wide}/nodes/0", headers={"Accept": RAW}).content
    assert found.content == vector * 10_000
    near = {"ids": list(range(20)) * 15, "k": 19, "include_vectors": True}
    answer = shared.http.post(f"/v1/embeddings/{wide}/neighbors", json=near)
    assert fields_of(answer) == ["include_vectors"]
    assert "vnd.apache.arrow.stream" in answer.json()["detail"]
    some = near | {"ids": list(range(20)) * 2}
    results = shared.http.post(f"/v1/embeddings/{wide}/neighbors", json=some).json()["results"]
    assert results[:20] == results[20:]
    assert {len(result["vectors"]) for result in results} == {19}


def test_pieces_hold_the_same_bytes() -> None:
    random = np.random.default_rng(0)
    for sizes in ([], [0], [0, 0], [5], [PIECE_BYTES], [PIECE_BYTES + 1], *random.integers(0, 400_000, (20, 8))):
        body = [random.bytes(int(size)) for size in sizes]
        pieces = in_pieces(iter([*body[:3], *(memoryview(piece) for piece in body[3:])]))
        assert b"".join(pieces) == b"".join(body)
        assert pieces
        assert max(map(len, pieces)) <= PIECE_BYTES


def test_large_answers_that_nobody_reads_are_counted_until_the_client_is_gone(live: Live) -> None:
    version = put_version(live.store, live.settings, 20, WIDE).info.version
    in_flight = BytesInFlight(60_000_000)
    live.app.state.nml = replace(live.state, in_flight=in_flight)
    path, asked = f"/v1/embeddings/{version}/lookup", {"ids": [0] * 10_000}
    with hung_up_later(live, version):
        until(lambda: in_flight.taken == 40_000_000)
        refused = live.http.post(path, json=asked, headers={"Accept": RAW})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert live.http.post(path, json={"ids": [0] * 3}).status_code == 200
    until(lambda: in_flight.taken == 0)
    assert len(live.http.post(path, json=asked, headers={"Accept": RAW}).content) == 40_000_000
    assert in_flight.taken == 0


def test_who_reads_nothing_is_left(serve: Callable[..., Live], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_api, "STALLED_SECONDS", 1.0)
    live = serve()
    version = put_version(live.store, live.settings, 20, WIDE).info.version
    in_flight = Noting()
    live.app.state.nml = replace(live.state, in_flight=in_flight)
    with hung_up_later(live, version):
        until(lambda: in_flight.highest == 40_000_000)
        until(lambda: in_flight.taken == 0)


def test_those_who_wait_for_parquet_keep_nobody_else_waiting(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    version = put_version(live.store, live.settings, 100, 4).info.version
    path = f"/v1/embeddings/{version}"
    begun, go_on, genuine, statuses = threading.Event(), threading.Event(), downloads.parquet_file, []

    def slowly(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return genuine(*arguments)

    monkeypatch.setattr(downloads, "parquet_file", slowly)

    def download() -> None:
        statuses.append(live.http.get(f"{path}/download", params={"format": "parquet"}).status_code)

    waiting = [threading.Thread(target=download) for _ in range(10)]
    for thread in waiting:
        thread.start()
    assert begun.wait(60)
    try:
        assert live.http.post(f"{path}/lookup", json={"ids": list(range(100))}).status_code == 200
        assert live.http.get(f"{path}/download").status_code == 200
    finally:
        go_on.set()
        for thread in waiting:
            thread.join()
    assert statuses == [200] * 10
