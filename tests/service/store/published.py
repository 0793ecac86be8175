"""Training jobs that have succeeded, and versions in every state, straight in the store."""

from __future__ import annotations

from typing import Any

from service.store import Store
from service.store.records import Claim, Embedding, Job, NewJob

ABOUT: dict[str, Any] = {"rows": 3, "dim": 2, "id_type": "int", "classes": ["a"], "export": {"epoch": 7}}
RESULT: dict[str, Any] = {"metrics": {"eval": {"accuracy": 0.9}}, "figures": [], "embeddings": True}


def publishing_job(version: str) -> NewJob:
    return NewJob("publish", {"do": "publish", "version": version}, "hash", "digits")


def indexing_job(version: str, kind: str = "hnsw") -> NewJob:
    return NewJob("index", {"do": "index", "version": version, "kind": kind}, "hash", "digits")


def trained(store: Store, dataset: str = "digits", *, publish: bool = True, owner: str | None = None) -> Job:
    """A training job that has succeeded; `publish`: with a version that is being published."""
    job, _ = store.jobs.submit(NewJob("train", {}, "hash", dataset, owner=owner, name="a\0 name"))
    running = store.claims.claim("d", kinds=("train",), lease_seconds=60)
    assert running is not None
    assert running.id == job.id
    new = publishing_job(job.id) if publish else None
    return store.claims.finish(Claim.on(running), "succeeded", result=RESULT, publish=new)


def end_publishing(store: Store, job: Job) -> None:
    """End the job that publishes, as a dispatcher does after it has concluded."""
    embedding = store.embeddings.get(job.id)
    assert embedding is not None
    store.jobs.cancel(embedding.job_id)


def ready(store: Store, dataset: str = "digits", *, owner: str | None = None) -> Embedding:
    """A version that is ready."""
    job = trained(store, dataset, owner=owner)
    embedding = store.embeddings.get(job.id)
    assert embedding is not None
    made = store.embeddings.finish(job.id, embedding.job_id, about=ABOUT)
    end_publishing(store, job)
    return made
