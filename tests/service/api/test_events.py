"""Event streams: every event once and in order, from whichever number, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api import events
from service.store.records import Claim, Event, NewEvent
from tests.service.api.server import Live
from tests.service.api.test_problems import checked, database_away
from tests.trainer.tracking.mlflow_server import free_port

Seen = tuple[int, str, dict[str, Any]]


def parsed(lines: Iterator[str]) -> Iterator[Seen]:
    """Number, type and data of each message."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        else:
            if "data" in fields:
                yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


def watch(live: Live, job_id: str, **headers: str) -> list[Seen]:
    """All that a stream tells until it ends."""
    with httpx.stream("GET", f"{live.url}/v1/jobs/{job_id}/events", headers=headers, timeout=60) as response:
        assert response.status_code == 200
        return list(parsed(response.iter_lines()))


def watching(live: Live, job_id: str, *after: int) -> list[Future[list[Seen]]]:
    """What each of several watchers will have seen; in threads that a failed test need not wait for."""
    seen: list[Future[list[Seen]]] = [Future() for _ in after]

    def follow(mine: Future[list[Seen]], start: int) -> None:
        try:
            mine.set_result(watch(live, job_id, **{"Last-Event-ID": str(start)}))
        except BaseException as error:
            mine.set_exception(error)

    already = live.state.feed.watchers
    for mine, start in zip(seen, after, strict=True):
        threading.Thread(target=follow, args=(mine, start), daemon=True).start()
    until(lambda: live.state.feed.watchers == already + len(after))
    return seen


def numbers(seen: list[Seen]) -> list[int]:
    return [number for number, _, _ in seen]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def test_after_the_end_all_is_told_again_and_the_stream_ends(live: Live) -> None:
    live.submit()
    job = live.claim()
    live.tell(job, 1, 2, 3)
    live.finish(job)
    with live.http.stream("GET", f"/v1/jobs/{job.id}/events") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        text = response.read().decode()
    assert text.startswith("retry: 1000\n\n")
    seen = list(parsed(iter(text.splitlines())))
    assert numbers(seen) == [1, 2, 3, 4, 5, 6]
    assert [kind for _, kind, _ in seen] == ["state", "state", "epoch", "epoch", "epoch", "state"]
    assert [data.get("state") for _, kind, data in seen if kind == "state"] == ["queued", "running", "succeeded"]
    assert seen[3][2]["epoch"] == 2
    assert seen[3][2]["metrics"] == {"loss": 0.5}
    assert seen[3][2]["time"] > 0


def test_resume_by_header_or_query(live: Live) -> None:
    live.submit()
    job = live.claim()
    live.tell(job, 1, 2, 3)
    live.finish(job)
    address = f"/v1/jobs/{job.id}/events"
    assert numbers(watch(live, job.id, **{"Last-Event-ID": "4"})) == [5, 6]
    text = live.http.get(address, params={"after": 5}).text
    assert numbers(list(parsed(iter(text.splitlines())))) == [6]
    text = live.http.get(address, params={"after": 2}, headers={"Last-Event-ID": "5"}).text
    assert numbers(list(parsed(iter(text.splitlines())))) == [6]
    for seen in ("6", "7", "9007199254740992"):
        done = live.http.get(address, headers={"Last-Event-ID": seen})
        assert (done.status_code, done.content) == (204, b"")
    for wrong in ("-1", "x", "1e3", "9" * 5_000, "1.5"):
        checked(live.http.get(address, headers={"Last-Event-ID": wrong}), 422)


def test_many_watchers_see_everything_as_it_happens(live: Live) -> None:
    job_id = live.submit()["id"]
    watchers = watching(live, job_id, *(0, 1, 999) * 8)
    job = live.claim(job_id)
    for first in range(1, 1_501, 50):
        live.tell(job, *range(first, first + 50))
    live.finish(job)
    seen = [watcher.result(60) for watcher in watchers]
    total = 1_503
    assert all(numbers(each) == list(range(1, total + 1)) for each in seen[0::3])
    assert all(numbers(each) == list(range(2, total + 1)) for each in seen[1::3])
    assert all(numbers(each) == list(range(2, total + 1)) for each in seen[2::3])  # it had seen more than there was
    assert all(each[-1][2]["state"] == "succeeded" for each in seen)
    until(lambda: live.state.feed.watchers == 0)
    assert live.state.feed._channels == {}


def test_watchers_share_one_query(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [live.submit()["id"] for _ in range(3)]
    asked: list[tuple[str, int]] = []
    events = type(live.store.events)
    real = events.after
    watchers = [watcher for job_id in jobs for watcher in watching(live, job_id, 1, 1, 1, 1)]

    def counted(self: Any, job_id: str, seq: int, limit: int = 1_000) -> list[Event]:
        asked.append((job_id, seq))
        return real(self, job_id, seq, limit)

    monkeypatch.setattr(events, "after", counted)
    for job_id in jobs:
        live.finish(live.claim(job_id))
    assert all(numbers(watcher.result(60)) == [2, 3] for watcher in watchers)
    assert len(asked) == len(set(asked)) <= 6


def test_long_history_is_read_beside_the_event_loop(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.submit()
    job = live.claim()
    live.tell(job, *range(1, 1_201))
    live.finish(job)
    readers: list[int] = []
    events = type(live.store.events)
    real = events.after

    def noted(self: Any, job_id: str, seq: int, limit: int = 1_000) -> list[Event]:
        readers.append(threading.get_ident())
        return real(self, job_id, seq, limit)

    monkeypatch.setattr(events, "after", noted)
    assert numbers(watch(live, job.id)) == list(range(1, 1_204))
    assert readers
    loop = next(thread.ident for thread in threading.enumerate() if thread.name.endswith("(run)"))
    assert loop not in readers[:2]  # a few at the end are read at once
    assert readers[2:] == [loop] * len(readers[2:]) or loop not in readers


def test_stream_outlives_an_outage(live: Live) -> None:
    live.submit()
    job = live.claim()
    watchers = watching(live, job.id, 0, 0)
    live.tell(job, 1)
    with database_away(live):
        time.sleep(0.3)
    live.tell(job, 2)
    live.finish(job)
    assert [numbers(watcher.result(60)) for watcher in watchers] == [[1, 2, 3, 4, 5]] * 2


def test_deleted_job_ends_its_streams(live: Live) -> None:
    live.submit()
    job = live.claim()
    channel_events = []
    with live.http.stream("GET", f"/v1/jobs/{job.id}/events") as response:
        lines = parsed(response.iter_lines())
        channel_events += [next(lines), next(lines)]
        live.finish(job)
        live.store.jobs.delete(job.id)
        channel_events += list(lines)
    assert numbers(channel_events) in ([1, 2], [1, 2, 3])


def test_watcher_that_leaves_is_forgotten(live: Live) -> None:
    job_id = live.submit()["id"]
    with live.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        lines = parsed(response.iter_lines())  # dropped, it would end the stream
        next(lines)
        assert live.state.feed.watchers == 1
    until(lambda: live.state.feed.watchers == 0)


def test_no_more_watchers_than_there_may_be(serve: Callable[..., Live]) -> None:
    live = serve(max_watchers=1)
    job_id = live.submit()["id"]
    with live.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        lines = parsed(response.iter_lines())
        next(lines)
        refused = live.http.get(f"/v1/jobs/{job_id}/events")
        checked(refused, 503)
        assert int(refused.headers["retry-after"]) > 0
    until(lambda: live.state.feed.watchers == 0)
    with live.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        assert response.status_code == 200


def test_sign_of_life_while_nothing_happens(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)
    job_id = live.submit()["id"]
    with live.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        lines = response.iter_lines()
        assert sum(line.startswith(":") for line, _ in zip(lines, range(20), strict=False)) >= 3


def test_types_and_data_cannot_break_the_format(live: Live) -> None:
    live.submit()
    job = live.claim()
    odd = {"text": "a\nid: 99\r\n\n\u2028", "half": "\ud800", "nan": float("nan")}
    live.store.claims.record(Claim.on(job), [NewEvent("odd\ndata: {}", odd)])
    live.finish(job)
    seen = watch(live, job.id)
    assert numbers(seen) == [1, 2, 3, 4]
    assert seen[2][1] == "odd_data____"
    assert seen[2][2]["text"] == odd["text"]
    assert seen[2][2]["nan"] is None


def test_server_that_is_told_to_stop_does_not_wait_for_streams(tmp_path: Path) -> None:
    port = free_port()
    environment = os.environ | {"NML_HOME": str(tmp_path), "NML_POLL_SECONDS": "0.05"}
    command = [sys.executable, "-m", "uvicorn", "--factory", "service.app:from_environment", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            until(lambda: _answers(http))
            job_id = http.post("/v1/jobs", json={"data": {"name": "digits"}}).json()["id"]
            started, ended = threading.Event(), threading.Event()

            def follow() -> None:
                with http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
                    lines = parsed(response.iter_lines())
                    next(lines)
                    started.set()
                    assert list(lines) == []
                ended.set()

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            assert started.wait(60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)
            assert ended.wait(60)
    finally:
        process.kill()
        process.wait()


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/livez").status_code == 200
    except httpx.TransportError:
        return False
