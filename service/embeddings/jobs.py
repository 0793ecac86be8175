"""Jobs that publish and index, as the service makes them, and how each of them ends in the store.

A dispatcher finishes the version *before* it ends the job: killed in between, it (or another one) finds the job still
running, and does both again. So a job that succeeded never leaves a version in state "publishing". A job that was
cancelled or deleted while queued changes no version; `reconcile` finds what such jobs left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from typing import Any, cast

from service.embeddings.layout import IndexKind, VersionInfo, index_files, read_info
from service.embeddings.retention import retire
from service.settings import Settings
from service.store import Store
from service.store.errors import Fenced
from service.store.records import Embedding, Job, NewJob

_LATER = -1  # priority of an index: searching works without, so uploads and new versions go first
_LARGEST = 1_000_000  # bytes of what is written about an index


def publish_job(job: Job) -> NewJob:
    """The job that publishes what a training job left.

    It declares no memory: how many rows there are is in its export, which the store does not know, and vectors are
    read in pieces. What is held at once is the ids, about 40 bytes a row.
    """
    spec = {"do": "publish", "version": job.id}
    return NewJob("publish", spec, _hash(spec), job.dataset, owner=job.owner, name=job.name)


def index_job(
    embedding: Embedding, kind: IndexKind, about: dict[str, Any] | None = None, *, most: int | None = None
) -> NewJob:
    """The job that builds a search index of a version.

    Args:
        about: what is known of the version, if its row does not say it yet.
        most: bytes that it may ask for, see `most_memory`. One that asked for more than there is would wait until
            nothing else runs at all, and all that is queued behind it would wait too.
    """
    from service.embeddings.approximate import index_memory  # numpy, of which a dispatcher needs nothing else

    about = about or embedding.about or {}
    spec = {"do": "index", "version": embedding.version, "kind": kind}
    need = index_memory(int(about["rows"]), int(about["dim"]), kind)
    return NewJob(
        "index", spec, _hash(spec), embedding.dataset, owner=embedding.owner, name=embedding.name, priority=_LATER,
        memory_bytes=need if most is None else min(need, most),
    )  # fmt: skip


def most_memory(settings: Settings) -> int | None:
    """What an index job may ask for: all that a dispatcher gives out. A cluster knows by itself what fits."""
    return settings.memory_bytes if settings.runner == "local" else None


def finish_publish(job: Job, store: Store, settings: Settings, *, failure: str | None) -> None:
    """Make the version of a publishing job ready, or failed. May be called again.

    Args:
        failure: why it failed for good; none: it succeeded.

    Raises:
        Unavailable: the database does not answer; call again.
        OSError, ValueError: it succeeded, but what it made cannot be read.
    """
    version = str(job.spec["version"])
    there = store.embeddings.get(version)
    if there is None or there.state != "publishing" or there.job_id != job.id:
        return  # finished before, or deleted since, or published anew
    with contextlib.suppress(Fenced):  # so in this very moment
        if failure is not None:
            store.embeddings.finish(version, job.id, failure=failure)
            return
        about = about_version(read_info(settings.version_directory(version)))
        index = None
        if about["rows"] >= settings.index_min_rows:
            index = index_job(there, "hnsw", about, most=most_memory(settings))
        store.embeddings.finish(version, job.id, about=about, index=index)
    with contextlib.suppress(OSError):  # no fault of this version; the next sweep tries again
        retire(store, settings, by_age=False)  # the sweep has a clock that does not jump


def finish_index(job: Job, store: Store, settings: Settings, *, failure: str | None) -> None:
    """Make an index ready, or failed. May be called again; arguments and errors as of `finish_publish`."""
    version, kind = str(job.spec["version"]), cast(IndexKind, job.spec["kind"])
    there = store.embeddings.get(version)
    if there is None or there.indexes.get(kind, {}).get("job") != job.id:
        return
    with contextlib.suppress(Fenced):
        if failure is not None:
            store.embeddings.finish_index(version, kind, job.id, failure=failure)
            return
        store.embeddings.finish_index(version, kind, job.id, about=_about_index(settings, version, kind))


def about_version(info: VersionInfo) -> dict[str, Any]:
    """What the store keeps of a version: all but the checksums of its files and the names of its classes.

    Every process reads all versions at every change, so a row is small; `class_names` reads the names of one.
    """
    about = {name: value for name, value in asdict(info).items() if name != "files"}
    return about | {"classes": None if info.classes is None else len(info.classes)}


def class_names(settings: Settings, version: str) -> list[str] | None:
    """The names of a version's classes; none if it has no labels, or cannot be read."""
    try:
        classes = read_info(settings.version_directory(version)).classes
    except (OSError, ValueError):
        return None
    return None if classes is None else list(classes)


def reconciled(embedding: Embedding, store: Store) -> Embedding:
    """The version; marked as failed if the job that publishes or indexes it has ended without finishing it.

    That happens when the job was cancelled, or could not be handled at all.
    """
    if embedding.state == "publishing":
        reason = _end_of(embedding.job_id, store, "its publishing was cancelled; publish it again")
        if reason is not None:
            with contextlib.suppress(Fenced):  # finished in this very moment
                store.embeddings.finish(embedding.version, embedding.job_id, failure=reason)
            return store.embeddings.get(embedding.version) or embedding
    for kind, entry in embedding.indexes.items():
        if entry.get("state") == "building":
            reason = _end_of(str(entry.get("job")), store, "its building was cancelled; ask for it again")
            if reason is not None:
                with contextlib.suppress(Fenced):
                    store.embeddings.finish_index(embedding.version, kind, str(entry.get("job")), failure=reason)
                embedding = store.embeddings.get(embedding.version) or embedding
    return embedding


def reconcile(store: Store) -> None:
    """Reconcile all versions that are unfinished."""
    for embedding in store.embeddings.unfinished():
        reconciled(embedding, store)


def _end_of(job_id: str, store: Store, otherwise: str) -> str | None:
    """Why a job has ended; None while it has not."""
    job = store.jobs.get(job_id)
    if job is not None and not job.is_terminal:
        return None
    return (job and job.failure_message) or otherwise


def _about_index(settings: Settings, version: str, kind: IndexKind) -> dict[str, Any]:
    """What its builder wrote.

    Raises:
        OSError, ValueError: nothing that can be read.
    """
    index, document = (settings.version_directory(version) / name for name in index_files(kind))
    with document.open("rb") as stream:
        about = json.loads(stream.read(_LARGEST))
    if not isinstance(about, dict) or not index.is_file():
        raise ValueError(f"there is no index {kind}")
    return {name: value for name, value in about.items() if name != "kind"}


def _hash(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
