"""Who computes, who waits, who is sent away; and what browsers may see of answers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from service.api.embeddings import downloads
from service.api.embeddings.bounded_pool import BoundedPool
from service.api.problems import Problem
from tests.service.api.embeddings.published import put_version
from tests.service.api.server import Live


def test_a_few_at_a_time_some_wait_and_the_rest_is_sent_away() -> None:
    go_on, running, most = threading.Event(), [], []

    def work(number: int) -> int:
        running.append(number)
        most.append(len(running))
        go_on.wait(30)
        running.remove(number)
        return number

    async def main() -> tuple[list[int], list[Any]]:
        pool, done, refused = BoundedPool(2, most_waiting=3), [], []

        async def one(number: int) -> None:
            try:
                done.append(await pool.run(work, number))
            except Problem as problem:
                refused.append((problem.status, int(problem.headers["Retry-After"]) > 0))

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(one, number)
            while len(refused) < 3 or len(running) < 2:
                await anyio.sleep(0.005)
            go_on.set()
        return done, refused

    done, refused = anyio.run(main)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert refused == [(503, True)] * 3
    assert max(most) == 2


def test_disk_that_is_full_is_told_as_such(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/v1/embeddings/{put_version(live.store, live.settings, 5, 4).info.version}/download"

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(downloads, "parquet_file", full)
        answer = live.http.get(path, params={"format": "parquet"})
        assert answer.status_code == 507
        assert "full" in answer.json()["detail"]
        assert live.http.get(path).status_code == 200
    assert live.http.get(path, params={"format": "parquet"}).status_code == 200


def test_pages_of_other_origins_may_set_aliases_and_see_versions(serve: Callable[..., Live]) -> None:
    live = serve(allowed_origins=("https://console.example",))
    version = put_version(live.store, live.settings, 5, 4).info.version
    origin = {"Origin": "https://console.example"}
    asking = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
    preflight = live.http.options("/v1/aliases/a", headers=origin | asking)
    assert preflight.status_code == 200
    assert "PUT" in preflight.headers["access-control-allow-methods"]
    answer = live.http.get(f"/v1/embeddings/{version}/nodes/1", headers=origin)
    assert answer.status_code == 200
    exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert {"ETag", "Nml-Version", "Nml-Rows", "Nml-Unknown", "Nml-Dimension", "Content-Range"} <= exposed
