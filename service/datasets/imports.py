"""How the check of an upload ends: what the importer found goes into the store, and the uploaded files go away.

A dispatcher calls `conclude_import` *before* it ends the import job: killed in between, it (or another one) finds the
job still running, and does both again. So a data set is never left behind "checking" by a job that has ended well.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from service.datasets.uploads import discard
from service.discarded import discard as remove_folder
from service.settings import Settings
from service.store import Store
from service.store.errors import Fenced, QuotaExceeded
from service.store.records import Dataset, Job

ABOUT = "about.json"  # in the graph's folder, by trainer.data.importing


def conclude_import(job: Job, store: Store, settings: Settings, *, failure: str | None) -> None:
    """Make the data set of an import job ready, or failed, and remove its upload. May be called again.

    Args:
        failure: why it failed for good; none: it succeeded.

    Raises:
        Unavailable: the database does not answer; call again.
        OSError, ValueError: it succeeded, but what it found cannot be read.
    """
    with contextlib.suppress(Fenced):  # concluded before, or deleted and uploaded anew since
        if failure is None:
            about, size = read_about(settings, job.dataset), _size(settings.graphs / job.dataset)
            try:
                store.datasets.finish(
                    job.dataset, job.id, about=about, size=size, most_bytes=settings.upload_quota_bytes
                )
            except QuotaExceeded as error:  # others that were checked meanwhile have used it up
                store.datasets.finish(job.dataset, job.id, failure=str(error))
                remove_folder(settings.graphs / job.dataset)
        else:
            store.datasets.finish(job.dataset, job.id, failure=failure)
    discard(settings, str(job.spec["upload"]))


def read_about(settings: Settings, ref: str) -> dict[str, Any]:
    """What the importer says of a graph.

    Raises:
        OSError, ValueError: it said nothing.
    """
    about: dict[str, Any] = json.loads((settings.graphs / ref / ABOUT).read_bytes())
    return about


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def settled(dataset: Dataset, store: Store) -> Dataset:
    """The data set, no longer "checking" if the job that checks it has ended without a result: then it has failed.

    That happens when the job was cancelled, or deleted together with its files.
    """
    if dataset.state != "checking":
        return dataset
    job = store.jobs.get(dataset.job_id)
    if job is not None and not job.is_terminal:
        return dataset
    failure = (job and job.failure_message) or "its check was cancelled; upload it again"
    try:
        return store.datasets.finish(dataset.ref, dataset.job_id, failure=failure)
    except Fenced:  # concluded in this very moment
        return store.datasets.get(dataset.ref) or dataset
