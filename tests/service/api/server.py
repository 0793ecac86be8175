"""A real server on a real port, with a database of its own, for as long as a test needs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from service.api.state import AppState
from service.app import create_app
from service.net.bounded_http import BoundedHttp, bounded_http
from service.net.places import Places
from service.serve_api import listening_socket
from service.settings import Settings
from service.store import Store
from service.store.records import Claim, Job, NewEvent

SMALL = {
    "data": {"name": "synthetic", "synthetic": {"nodes": 60, "classes": 2, "features": 8}},
    "encoder": {"hidden": 8, "dim": 4},
    "method": {"metric": {"hidden": 8}},
    "optimiser": {"epochs": 3},
}


@dataclass(frozen=True)
class Live:
    """A server that runs, and what is behind it."""

    url: str
    http: httpx.Client
    app: FastAPI
    settings: Settings

    @property
    def state(self) -> AppState:
        state: AppState = self.app.state.nml
        return state

    @property
    def store(self) -> Store:
        return self.state.store

    def submit(self, spec: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """Queue a training job and give its document."""
        response = self.http.post("/v1/jobs", json=SMALL if spec is None else spec, params=query)
        assert response.status_code == 202, response.text
        document: dict[str, Any] = response.json()
        return document

    def claim(self, job_id: str | None = None, owner: str = "dispatcher") -> Job:
        """Take the next queued job, as a dispatcher does."""
        job = self.store.claims.claim(owner, kinds=("train", "sweep"), lease_seconds=60)
        assert job is not None
        assert job_id in (None, job.id)
        return job

    def tell(self, job: Job, *epochs: int, loss: float = 1.0, **updates: Any) -> None:
        """Record epochs of a claimed job."""
        events = [NewEvent("epoch", {"metrics": {"loss": loss / epoch}}, epoch) for epoch in epochs]
        self.store.claims.record(Claim.on(job), events, **updates)

    def finish(self, job: Job, state: str = "succeeded", **outcome: Any) -> None:
        self.store.claims.finish(Claim.on(job), state, **outcome)  # type: ignore[arg-type]


@contextmanager
def serving(settings: Settings, *, places: Places | None = None) -> Iterator[Live]:
    """Start a server in a thread; it listens when this begins and has ended when this ends."""
    with listening_socket("127.0.0.1", 0) as listener, httpx.Client(timeout=120) as http:
        app = create_app(settings)
        config = uvicorn.Config(
            app,
            http=BoundedHttp if places is None else bounded_http(places),
            log_level="error",
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        http.base_url = httpx.URL(f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            yield Live(str(http.base_url), http, app, settings)
        finally:
            http.close()
            server.should_exit = True
            thread.join(120)
            assert not thread.is_alive()
