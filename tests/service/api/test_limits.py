"""How much one client may ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.api import security
from service.api.edge import limits
from service.api.edge.guard import Guard
from service.api.edge.limits import UNCOUNTED_BYTES, BodiesHeld, Buckets
from service.api.problems import Problem
from tests.service.api.server import SMALL, Live
from tests.service.api.test_events import until
from tests.service.api.test_problems import checked


def test_bucket_gives_the_burst_then_the_rate() -> None:
    now = 100.0
    buckets = Buckets(rate=2, burst=3, clock=lambda: now)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    now += 0.5
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]
    now += 1_000
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_buckets_forget_who_was_silent_longest() -> None:
    buckets = Buckets(rate=1e-9, burst=1)
    for client in ("first", *map(str, range(limits._REMEMBERED - 1))):
        assert buckets.take(client) == 0
    assert buckets.take("first") > 0  # and is now the one heard last
    assert buckets.take("new") == 0
    assert buckets.take("0") == 0  # forgotten
    assert buckets.take("first") > 0
    assert len(buckets._levels) == limits._REMEMBERED


def bearer(live: Live, *scopes: str) -> dict[str, str]:
    """The header of a new key."""
    return {"Authorization": f"Bearer {live.store.keys.create('test', scopes)[1]}"}


def test_too_many_requests(serve: Callable[..., Live]) -> None:
    live = serve(rate_per_second=0.001, rate_burst=5, require_key=True)
    one, other = bearer(live, "read"), bearer(live, "read")
    assert [live.http.get("/v1/jobs", headers=one).status_code for _ in range(3)] == [200] * 3
    assert [live.http.get("/v1/jobs", headers=other).status_code for _ in range(6)] == [200] * 5 + [429]
    refused = live.http.get("/v1/jobs", headers=other)
    assert checked(refused, 429).type.endswith("rate-limit")
    assert int(refused.headers["retry-after"]) > 0
    assert live.http.get("/v1/jobs", headers=one).status_code == 200
    assert [live.http.get("/livez").status_code for _ in range(10)] == [200] * 10
    assert "nml_http_rate_limited_total 2.0" in live.http.get("/metrics", headers=one).text


def test_a_key_that_was_never_seen_is_not_charged_for_strangers_at_its_address(serve: Callable[..., Live]) -> None:
    """Behind a proxy all clients have one address."""
    live = serve(rate_per_second=0.001, rate_burst=5, require_key=True)
    wrong = [{"Authorization": f"Bearer nml_{n:012x}_{n:064x}"} for n in range(5)]
    strangers = [live.http.get("/v1/jobs", headers=given).status_code for given in ({}, {}, {}, *wrong, {})]
    assert strangers == [401] * 5 + [429] * 4
    for _ in range(3):
        new = bearer(live, "read")
        assert [live.http.get("/v1/jobs", headers=new).status_code for _ in range(6)] == [200] * 5 + [429]


@pytest.mark.parametrize("given", [{}, {"X-API-Key": f"nml_{7:012x}_{7:064x}"}])
def test_a_flood_of_strangers_does_not_lock_out_a_key(
    serve: Callable[..., Live], monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """As fast as they can, from the same address; the key is looked up anew for each of its requests."""
    monkeypatch.setattr(security, "KEPT_SECONDS", 0.0)
    live = serve(rate_per_second=1, rate_burst=100, require_key=True)
    headers, sent, ended = bearer(live, "read"), [], threading.Event()

    def flood() -> None:
        with httpx.Client(base_url=live.url, headers=given, timeout=120) as http:
            while not ended.is_set():
                sent.append(http.get("/v1/jobs").status_code)

    strangers = [threading.Thread(target=flood) for _ in range(4)]
    for stranger in strangers:
        stranger.start()
    try:
        until(lambda: sent.count(429) > 20)
        before = len(sent)
        found = [live.http.get("/v1/jobs", headers=headers).status_code for _ in range(80)]
    finally:
        ended.set()
        for stranger in strangers:
            stranger.join()
    assert len(sent) > before, "the flood went on meanwhile"
    assert found == [200] * 80


def test_guessing_keys_is_limited_by_address(serve: Callable[..., Live]) -> None:
    live = serve(rate_per_second=0.001, rate_burst=5, require_key=True)
    guesses = [{"Authorization": f"Bearer nml_{n:012x}_{n:064x}"} for n in range(7)]
    assert [live.http.get("/v1/jobs", headers=guess).status_code for guess in guesses] == [401] * 5 + [429] * 2


def test_unfinished_jobs_per_key(serve: Callable[..., Live]) -> None:
    live = serve(max_active_jobs=2, require_key=True)
    one, other = ({"Authorization": f"Bearer {live.store.keys.create('test', ['submit'])[1]}"} for _ in range(2))
    made = [live.http.post("/v1/jobs", json=SMALL, headers=one).json() for _ in range(2)]
    refused = live.http.post("/v1/jobs", json=SMALL, headers=one)
    assert checked(refused, 429).type.endswith("quota")
    assert live.http.post("/v1/jobs", json=SMALL, headers=other).status_code == 202
    live.http.post(f"/v1/jobs/{made[0]['id']}/cancel", headers=one)
    assert live.http.post("/v1/jobs", json=SMALL, headers=one).status_code == 202


def test_long_bodies_of_one_key_leave_room_for_those_of_others() -> None:
    held = BodiesHeld(most=100, most_per_key=40)
    held.count("greedy", 0, 90)  # one alone may be of any size
    with pytest.raises(Problem) as refused:
        held.count("greedy", 0, 1)
    assert refused.value.status == 429
    held.count("other", 0, 10)
    with pytest.raises(Problem) as refused:
        held.count("third", 0, 1)
    assert (refused.value.status, held.bytes) == (503, 100)
    held.release("greedy", 90)
    held.count("other", 10, 40)  # the same body has grown
    held.count("third", 0, 40)
    held.release("other", 40)
    held.release("third", 40)
    assert held.bytes == 0


def test_short_bodies_are_not_counted_and_long_ones_only_until_they_are_answered(live: Live) -> None:
    guard: Any = live.app.middleware_stack
    while not isinstance(guard, Guard):
        guard = guard.app
    seen = []
    count = guard.bodies.count

    def noted(owner: str | None, before: int, size: int) -> None:
        count(owner, before, size)
        seen.append(guard.bodies.bytes)

    guard.bodies.count = noted  # type: ignore[method-assign]
    for size in (UNCOUNTED_BYTES, 2 * UNCOUNTED_BYTES):
        assert live.http.post("/v1/jobs", content=b" " * size, headers={"Content-Type": "application/json"}).is_error
        assert max(seen, default=0) == (0 if size == UNCOUNTED_BYTES else size)
        until(lambda: guard.bodies.bytes == 0)
