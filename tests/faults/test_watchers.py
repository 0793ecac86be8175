"""Many watch one job while the API is killed and comes back: each sees every event exactly once, in order."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.client import Client
from service.store import open_store
from service.store.records import Claim, NewEvent, NewJob
from tests.faults.services import Service, kill, wait_for
from trainer.config import TrainSpec

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(300)]
WATCHERS, EVENTS, BATCH = 200, 300, 5


def test_two_hundred_watchers_see_every_event_once_though_the_api_dies(tmp_path):
    service = Service(tmp_path / "home", role="api")
    service.start()
    try:
        wait_for(lambda: service.answers("/livez"), 120, service.last_words)
        store = open_store(service.settings)
        spec = TrainSpec().model_dump(mode="json")
        job, _ = store.jobs.submit(NewJob("train", spec, "hash", "digits"))
        claimed = store.claims.claim("test", kinds=("train",), lease_seconds=600)
        assert claimed is not None
        claim, connected = Claim.on(claimed), threading.Semaphore(0)
        with ThreadPoolExecutor(WATCHERS) as pool:
            watching = [pool.submit(watch, service.client(), job.id, connected) for _ in range(WATCHERS)]
            for _ in range(WATCHERS):
                assert connected.acquire(timeout=120)
            for epoch in range(1, EVENTS + 1, BATCH):
                told = [NewEvent("epoch", {"epoch": at}, epoch=at) for at in range(epoch, epoch + BATCH)]
                store.claims.record(claim, told)
                if epoch == 1 + EVENTS // 2 // BATCH * BATCH:
                    (api,) = service.parts("service.serve_api")
                    assert kill(api)
                time.sleep(0.05)
            store.claims.finish(claim, "succeeded")
            seen = [future.result(120) for future in watching]
        everything = [(event.seq, event.type) for event in store.events.after(job.id, 0)]
        store.close()
        assert len(everything) == EVENTS + 3
        assert [watched for watched in seen if watched != everything] == []
    finally:
        service.end()


def watch(client: Client, job_id: str, connected: threading.Semaphore) -> list[tuple[int, str]]:
    seen = []
    with client:
        for event in client.events(job_id):
            if not seen:
                connected.release()
            seen.append((event.seq, event.type))
    return seen
