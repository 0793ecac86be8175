"""Event streams of a client with an ordinary key that would take them from everybody else, or keep one for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from service.api import events
from tests.service.api.server import SMALL, Live
from tests.service.api.test_events import parsed, until
from tests.service.api.test_limits import bearer
from tests.service.api.test_problems import checked


@contextmanager
def stream(live: Live, job_id: str, headers: dict[str, str]) -> Iterator[Iterator[object]]:
    """An open stream, of which the first event was read."""
    with live.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        lines = parsed(response.iter_lines())
        next(lines)
        yield lines


def submitted(live: Live, headers: dict[str, str]) -> str:
    job_id: str = live.http.post("/v1/jobs", json=SMALL, headers=headers).json()["id"]
    return job_id


def test_one_key_cannot_take_every_event_stream(serve: Callable[..., Live]) -> None:
    live = serve(require_key=True, max_watchers=4, max_watchers_per_key=2)
    greedy, other = bearer(live, "submit"), bearer(live, "read")
    job_id = submitted(live, greedy)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(stream(live, job_id, greedy))
        refused = live.http.get(f"/v1/jobs/{job_id}/events", headers=greedy)
        assert "NML_MAX_WATCHERS_PER_KEY" in checked(refused, 429).detail
        assert int(refused.headers["retry-after"]) > 0
        stack.enter_context(stream(live, job_id, other))
    until(lambda: live.state.feed.watchers == 0)
    with stream(live, job_id, greedy):
        pass


def test_streams_asked_for_at_the_same_moment_are_counted_too(
    serve: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks is checked before any of the streams has begun."""
    live = serve(require_key=True, max_watchers_per_key=2)
    greedy = bearer(live, "submit")
    job_id = submitted(live, greedy)
    monkeypatch.setattr(type(live.state.feed), "check_room", lambda feed, owner: None)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(stream(live, job_id, greedy))
        assert live.http.get(f"/v1/jobs/{job_id}/events", headers=greedy).content == b"", "it ends at once"


def test_a_revoked_key_loses_its_streams(serve: Callable[..., Live], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEY_CHECK_SECONDS", 0.0)
    live = serve(require_key=True)
    key, text = live.store.keys.create("leaver", ["submit"])
    leaver, other = {"X-API-Key": text}, bearer(live, "read")
    job_id = submitted(live, leaver)
    with stream(live, job_id, leaver) as lost, stream(live, job_id, other) as kept:
        live.store.keys.revoke(key.id)
        assert list(lost) == []
        assert live.state.feed.watchers == 1
        live.finish(live.claim(job_id))
        assert len(list(kept)) == 2
    until(lambda: live.http.get("/v1/jobs", headers=leaver).status_code == 401)
