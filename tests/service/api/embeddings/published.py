"""Published versions for tests of the API: real files, and rows in the store as a dispatcher would have left them."""

from __future__ import annotations

from typing import Any

import httpx

from service.embeddings.jobs import about_version, publish_job
from service.embeddings.table import Table
from service.settings import Settings
from service.store import Store
from service.store.records import Claim, NewJob, new_id
from tests.service.embeddings.tables import make_export, publish

FIRST = 101  # priority beyond what clients may ask for, so that ours is claimed first


def put_version(store: Store, settings: Settings, *arguments: Any, version: str | None = None, **options: Any) -> Table:
    """A ready version; `arguments` and `options` are those of `make_export`. Returns its table."""
    version = version or new_id()
    run = make_export(settings.run_directory(version), *arguments, **options)
    dataset = options.get("dataset", "synthetic")
    put_job(store, version, dataset)
    folder = publish(run, settings.home, version)
    table = Table.open(folder)
    made = store.embeddings.get(version)
    assert made is not None
    store.embeddings.finish(version, made.job_id, about=about_version(table.info))
    store.jobs.cancel(made.job_id)
    return table


def put_job(store: Store, version: str, dataset: str = "synthetic", owner: str | None = None) -> None:
    """A training job that has succeeded, whose embeddings are being published."""
    new = NewJob("train", {}, "h", dataset, owner=owner, name="for tests", priority=FIRST)
    store.jobs.submit(new, job_id=version)
    claimed = store.claims.claim("test", kinds=("train",), lease_seconds=60)
    assert claimed is not None
    assert claimed.id == version
    result = {"embeddings": True, "metrics": {"accuracy": 0.5}}
    store.claims.finish(Claim.on(claimed), "succeeded", result=result)
    job = store.jobs.get(version)
    assert job is not None
    store.embeddings.create(job, publish_job(job))


def fields_of(answer: httpx.Response, status: int = 422) -> list[str]:
    """The fields that a refusal names."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == "application/problem+json"
    return [error["field"] for error in answer.json().get("errors", [])]
