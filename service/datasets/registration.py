"""From files on disk to a data set in the store: checked at once as far as that goes, then by an import job."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from service.datasets.checks import check_parts
from service.datasets.identity import refuse_taken, version_of
from service.datasets.imports import settled
from service.datasets.receive import Received, refuse_beyond
from service.datasets.refusal import Refused, unusable
from service.settings import Settings
from service.store import Store
from service.store.errors import NotAllowed, QuotaExceeded
from service.store.records import Dataset, Job, NewJob

MEMORY_MB = 256  # for the importer's buffers while tables are read; changes no result
_PART = re.compile(r"\b(?:(nodes|edges)\.(?:csv|parquet)|graph\.(npz))\b")


def allowance(store: Store, settings: Settings, owner: str | None) -> int:
    """Bytes that the owner of a key may still store; without keys, as much as an upload may have.

    Raises:
        Refused: 403, there is no room left.
    """
    if owner is None:
        return settings.max_upload_bytes
    left = settings.upload_quota_bytes - store.datasets.bytes_of(owner)
    refuse_beyond(left, 1)
    return left


def register(
    received: Received, store: Store, settings: Settings, owner: str | None, *,
    may_change: Callable[[str | None], bool], others: int = 0,
) -> tuple[Dataset, bool]:  # fmt: skip
    """The data set that these files are, and whether it is new: then its import job is queued and needs the files.

    The same content again finds what is there; the files are the caller's to discard.

    Args:
        may_change: whether the caller may change what that owner made.
        others: bytes of further uploads of the same owner that are under way.

    Raises:
        Refused: 422 the files cannot be a graph, 409 the name is taken, 403 it is another key's, or the key may not
            store so much.
        Unavailable: the database does not answer.
    """
    refuse_taken(received.name, settings.home)
    version = version_of(received.options, received.parts)
    ref = f"{received.name}.{version}"
    there = store.datasets.get(ref)
    if there is not None and settled(there, store).state != "failed":
        return there, _needs(there, received.upload.id, store)
    with _refusing():
        store.datasets.check_owner(received.name, may_change)
    left = allowance(store, settings, owner) - others  # others may have come in meanwhile
    refuse_beyond(left, received.size)
    need = check_parts(received.parts, received.upload.folder, memory=settings.memory_bytes)
    spec = {
        "ref": ref,
        "upload": received.upload.id,
        "parts": {part.field: part.file for part in received.parts},
        "options": received.options,
        "memory_mb": MEMORY_MB,
        "max_bytes": None if owner is None else left,
        "min_free_bytes": settings.min_free_bytes,
    }
    deadline = time.time() + 60 * settings.import_minutes
    job = NewJob("import", spec, spec_hash=_hash(spec), dataset=ref, owner=owner, memory_bytes=need, deadline=deadline)
    with _refusing():  # asked once more: others may have taken name or room while the files were looked at
        return store.datasets.create(
            received.name, version, options=received.options, size=received.size, job=job, may_change=may_change,
            most_bytes=None if owner is None else settings.upload_quota_bytes,
        )  # fmt: skip


@contextmanager
def _refusing() -> Iterator[None]:
    """Raises Refused 403 where the store says that a name is another key's, or that there is no room left."""
    try:
        yield
    except NotAllowed as error:
        raise Refused(403, "name", str(error)) from error
    except QuotaExceeded as error:
        raise Refused(403, "body", str(error)) from error


def _needs(dataset: Dataset, upload_id: str, store: Store) -> bool:
    """Whether a data set that is there came from this very upload: `create` succeeded before, its answer was lost."""
    job = store.jobs.get(dataset.job_id)
    return job is not None and job.spec.get("upload") == upload_id


def why_failed(dataset: Dataset, job: Job | None) -> Refused:
    """What to tell of a data set that the importer refused, or could not check.

    Files are to blame unless the job says that something else was: those may be sent again as they are.
    """
    message = dataset.failure or "it could not be imported"
    if job is not None and job.failure_kind in ("infra", "deadline"):
        return Refused(503, "body", f"it could not be checked: {message}. Upload it again")
    return unusable(blamed(message), message)


def blamed(message: str) -> str:
    """The part of the form that a message of the importer is about: the file it names first."""
    if message.startswith("options: "):
        return "options"
    found = _PART.search(message)
    return (found[1] or found[2]) if found else "body"


def _hash(spec: dict[str, Any]) -> str:
    content = {key: spec[key] for key in ("ref", "options")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
