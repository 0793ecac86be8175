"""Requests of one key by the dozen that take a while: others wait for some of them, and are not sent away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from service.api.embeddings import neighbors
from service.api.routes import jobs
from service.api.shares import Shares
from service.encoder.client import EncoderClient
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import Live
from tests.service.api.test_events import until
from tests.service.api.test_limits import bearer
from tests.service.api.test_problems import checked
from trainer.errors import InvalidInput

Ask = Callable[[dict[str, str]], httpx.Response]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whatever takes a while goes on once it is open."""
    opened = threading.Event()

    def held(genuine: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*arguments: Any, **options: Any) -> Any:
            assert opened.wait(120)
            return genuine(*arguments, **options)

        return waiting

    async def classify(*_: Any) -> Any:
        assert await asyncio.to_thread(opened.wait, 120)
        raise InvalidInput("too few labels")

    monkeypatch.setattr(neighbors, "search", held(neighbors.search))
    monkeypatch.setattr(jobs, "_series", held(jobs._series))
    monkeypatch.setattr(EncoderClient, "classify", classify)
    return opened


def question(live: Live, what: str) -> tuple[Ask, Shares, int]:
    """How it is asked, who counts those who do, and the answer's status."""
    version = put_version(live.store, live.settings, 20, 4).info.version
    path = f"/v1/embeddings/{version}"
    if what == "neighbors":
        return (
            lambda key: live.http.post(f"{path}/neighbors", json={"ids": [0]}, headers=key),
            _of(live, "searches"),
            200,
        )
    if what == "series":
        return lambda key: live.http.get(f"/v1/jobs/{version}/metrics", headers=key), _of(live, "series"), 200
    labels = {"ids": [0, 1], "labels": ["a", "b"]}
    return lambda key: live.http.post(f"{path}/classify", json=labels, headers=key), live.state.inferences, 422


def _of(live: Live, pool: str) -> Shares:
    places: Shares = getattr(live.state, pool)._places
    return places


@pytest.mark.parametrize("what", ["neighbors", "series", "classify"])
def test_one_key_cannot_take_every_place_in_a_queue(
    serve: Callable[..., Live], gate: threading.Event, what: str
) -> None:
    live = serve(require_key=True)
    ask, places, status = question(live, what)
    share = places.most // 2  # while nobody else asks
    greedy, other = bearer(live, "read"), bearer(live, "read")
    with ThreadPoolExecutor(share + 1) as pool:
        try:
            answers = [pool.submit(ask, greedy) for _ in range(share)]
            until(lambda: places.taken == share)
            refused = ask(greedy)
            assert checked(refused, 429).type.endswith("quota")
            assert int(refused.headers["retry-after"]) > 0
            answers.append(pool.submit(ask, other))
            until(lambda: places.taken == share + 1)
        finally:
            gate.set()
        assert [answer.result().status_code for answer in answers] == [status] * (share + 1)
    assert places.taken == 0
    assert ask(greedy).status_code == status
