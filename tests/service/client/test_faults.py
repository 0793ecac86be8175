"""What the client makes of connections that break: nothing is lost, nothing is done twice."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.client import ApiError, Client
from service.settings import Settings
from service.store import open_store
from service.store.records import Claim, NewEvent
from tests.service.api.server import SMALL, Live, serving
from tests.service.client.api_process import api_process
from tests.service.client.proxy import Proxy, proxying
from tests.service.client.test_client import exported
from tests.trainer.tracking.mlflow_server import free_port


@pytest.fixture
def proxy(live: Live) -> Iterator[Proxy]:
    with proxying(live.url) as found:
        yield found


def through(proxy: Proxy, *, budgets: Sequence[int] = (), every: int | None = None) -> Client:
    """A client that sees the server only through the proxy, by connections of its own."""
    proxy.budgets, proxy.every = list(budgets), every
    return Client(proxy.url, key="", patience=120)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_job_whose_answer_was_lost_is_not_submitted_twice(live: Live, proxy: Proxy, lost):
    with through(proxy, budgets=[0] * lost) as shaken:
        job = shaken.submit(SMALL, name="once")
    assert [request.split(" ")[0] for request in proxy.requests] == ["POST"] * (lost + 1)
    assert [found.id for found in live.store.jobs.list(kind="train")[0]] == [job.id]


def test_an_answer_cut_in_the_middle_is_asked_for_again(client: Client, proxy: Proxy):
    job = client.submit(SMALL)
    with through(proxy, budgets=[200, 700]) as shaken:
        assert shaken.job(job.id) == job
    assert proxy.requests == [f"GET /v1/jobs/{job.id} HTTP/1.1"] * 3


def test_cancelling_and_deleting_succeed_though_their_answers_are_lost(live: Live, client: Client, proxy: Proxy):
    job = client.submit(SMALL)
    with through(proxy, budgets=[0, 0]) as shaken:
        assert shaken.cancel(job).state == "cancelled"
    with through(proxy, budgets=[0, 0]) as shaken:
        shaken.delete(job)
    assert live.store.jobs.get(job.id) is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [1_100, 2_000])
def test_events_cut_off_again_and_again_come_once_each(live: Live, client: Client, proxy: Proxy, size):
    job = client.submit(SMALL)
    claimed = live.claim(job.id)
    live.tell(claimed, *range(1, 41))
    live.finish(claimed)
    with through(proxy, every=size) as shaken:
        told = list(shaken.events(job))
    assert told == list(client.events(job))
    assert [event.seq for event in told] == list(range(1, 44))
    assert len(proxy.requests) > 2


def test_a_download_goes_on_where_it_was_cut(live: Live, client: Client, proxy: Proxy):
    job = client.submit(SMALL)
    vectors = exported(live, job, np.arange(20_000))
    with through(proxy, every=400_000) as shaken:
        found, ids = shaken.embeddings(job)
    assert np.array_equal(found, vectors)
    assert np.array_equal(ids, np.arange(20_000))
    fetched = [request for request in proxy.requests if "vectors.npy" in request]
    assert 4 <= len(fetched) <= 5  # 1.28 MB in pieces of 0.4: no byte twice


def test_a_service_that_asks_for_patience_gets_it(tmp_path: Path):
    settings = Settings(home=tmp_path / "home", rate_per_second=1, rate_burst=2)
    with serving(settings) as slow, Client(slow.url, key="", patience=120) as client:
        assert len({client.submit(SMALL).id for _ in range(4)}) == 4
        with Client(slow.url, key="", patience=0) as hasty, pytest.raises(ApiError) as error:
            _ = [list(hasty.jobs()) for _ in range(10)]
        assert error.value.status == 429
        assert error.value.exit_code == 5


@pytest.mark.slow
def test_watching_and_submitting_survive_a_killed_api(tmp_path: Path):
    settings = Settings(home=tmp_path / "home", port=free_port(), poll_seconds=0.02, memory_limit="8GB")
    with api_process(settings) as api, Client(api.url, key="", patience=120) as client:
        job = client.submit(SMALL)
        store = open_store(settings)
        claimed = store.claims.claim("test", kinds=("train",), lease_seconds=600)
        assert claimed is not None
        seen: list[int] = []
        started = threading.Event()

        def watch() -> None:
            for event in client.events(job):
                seen.append(event.seq)
                started.set()

        with ThreadPoolExecutor(2) as pool:
            watching = pool.submit(watch)
            assert started.wait(120)
            for round_ in range(3):
                told = [NewEvent("epoch", {"metrics": {}}, epoch=3 * round_ + at) for at in (1, 2, 3)]
                store.claims.record(Claim.on(claimed), told)
                if round_ < 2:
                    api.kill()
                    submitting = pool.submit(client.submit, SMALL)  # while nobody answers
                    time.sleep(0.3)
                    api.start()
                    assert submitting.result(120).state == "queued"
            store.claims.finish(Claim.on(claimed), "succeeded")
            watching.result(120)
        assert seen == list(range(1, 13))
        assert len(store.jobs.list(kind="train")[0]) == 3
        store.close()


def test_uploads_are_streamed_and_progress_counts_every_byte(client: Client, tmp_path: Path):
    file = tmp_path / "a.npz"
    with file.open("wb") as writing:
        writing.truncate(40_000_000)
    told: list[tuple[int, int]] = []
    tracemalloc.start()
    with pytest.raises(ApiError, match="npz") as error:  # zeros are no npz
        client.push_dataset("g", npz=file, progress=lambda *at: told.append(at))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.status == 422
    done = [at for at, _ in told]
    assert {of for _, of in told} == {40_000_000}
    assert done == sorted(done)
    assert done[-1] == 40_000_000
    assert peak < 10_000_000  # of client and server together
