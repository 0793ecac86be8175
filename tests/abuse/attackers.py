"""Clients with keys of their own, against a service that asks for one, and what they have trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from service.settings import Settings
from tests.service.api.server import SMALL, Live, serving
from tests.service.client.published import Published, conclude, trained
from tests.service.datasets.forms import EDGES, NODES
from tests.service.datasets.importers import importing

FILES = {"nodes": ("n.csv", NODES), "edges": ("e.csv", EDGES)}


@contextmanager
def attacked(home: Path, **settings: Any) -> Iterator[Live]:
    """A service that asks for keys, with imports under way."""
    given = {"home": home, "memory_limit": "4GB", "min_free_bytes": 0, "require_key": True, "poll_seconds": 0.02}
    with serving(Settings(**given | settings)) as live, importing(live.store, live.settings):
        yield live


def client(live: Live, *scopes: str) -> httpx.Client:
    """A client with a new key of these scopes."""
    _, secret = live.store.keys.create("test", frozenset(scopes))
    return httpx.Client(base_url=live.url, headers={"Authorization": f"Bearer {secret}"}, timeout=60)


def upload(caller: httpx.Client, name: str) -> str:
    """A data set of this name; its reference."""
    answer = caller.post("/v1/datasets", data={"name": name}, files=FILES)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["ref"])


def train(
    live: Live, caller: httpx.Client, dataset: str | None = None, *, publish: bool = True, **table: Any
) -> Published:
    """A version of a table like that, from a job of this client's on that data set."""
    data = SMALL["data"] if dataset is None else {"name": "imported", "imported": dataset}
    answer = caller.post("/v1/jobs", json={**SMALL, "data": data})
    assert answer.status_code == 202, answer.text
    made = trained(live, job_id=answer.json()["id"], **table)
    if publish:
        conclude(live, made.version)
    return made
