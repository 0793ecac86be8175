"""What clients do with jobs: submit, read, cancel, delete.

    queued → running → succeeded | failed | cancelled        (cancelling on the way; running → queued for a retry)

Every change compares and swaps the state in one statement, so that of two concurrent changes exactly one succeeds.
What dispatchers do is in service.store.claims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.store.clock import now
from service.store.counters import read_counters
from service.store.engine import Database, read_row, reading, snapshot, writing
from service.store.errors import IdempotencyConflict, NotFound, QuotaExceeded, StateConflict
from service.store.events import append
from service.store.locks import QUOTAS, hold
from service.store.records import (
    ACTIVE,
    MOST_METADATA,
    TERMINAL,
    Idempotency,
    Job,
    Kind,
    NewEvent,
    NewJob,
    State,
    new_id,
)
from service.store.tables import Json, datasets, embeddings, events, job_metadata, jobs
from service.store.tables import idempotency as promises
from trainer.errors import InvalidInput

_NONE: Mapping[str, str] = MappingProxyType({})


class Jobs:
    """Every method is one transaction. All raise Unavailable where the database does not answer."""

    def __init__(self, database: Database):
        self._database = database
        placeholder = "%s" if database.is_postgresql else "?"
        self._get = f"SELECT {', '.join(jobs.c.keys())} FROM jobs WHERE id = {placeholder}"

    def submit(
        self, new: NewJob, *, idempotency: Idempotency | None = None, max_active: int | None = None,
        job_id: str | None = None,
    ) -> tuple[Job, bool]:  # fmt: skip
        """Queue a job, or return the one made with the same idempotency key. Returns it and whether it is new.

        Raises:
            IdempotencyConflict: the key was used for another request.
            QuotaExceeded: the owner has `max_active` unfinished jobs.
            NotFound: the uploaded data set has been deleted meanwhile.
        """
        for last_try in (False, True):
            try:
                with writing(self._database) as connection:
                    earlier = _promised(connection, idempotency)
                    if earlier is not None:
                        return earlier, False
                    _check_quota(connection, new.owner, max_active)
                    _hold_dataset(connection, new)
                    job = insert_job(connection, new, job_id)
                    if idempotency is not None:
                        _keep_promise(connection, idempotency, job)
                    return job, True
            except IntegrityError:  # the same key was used concurrently: it is there now
                if last_try:
                    raise
        raise AssertionError

    def promised(self, idempotency: Idempotency) -> Job | None:
        """The job that an earlier request with this key made.

        Raises:
            IdempotencyConflict: the key was used for another request.
        """
        with reading(self._database) as connection:
            return _promised(connection, idempotency)

    def get(self, job_id: str) -> Job | None:
        row = read_row(self._database, self._get, job_id)
        if row is None:
            return None
        values = zip(_IS_JSON, row, strict=True)
        return Job(*(json.loads(value) if is_json and value is not None else value for is_json, value in values))

    def list(
        self, *, kind: Kind, states: Sequence[str] = (), owner: str | None = None, dataset: str | None = None,
        name: str | None = None, created_from: float | None = None, created_before: float | None = None,
        metadata: Mapping[str, str] = _NONE, before: str | None = None, limit: int = 50,
    ) -> tuple[list[Job], str | None]:  # fmt: skip
        """A page of jobs, newest first, and the cursor of the next page, None on the last.

        They come without spec and relay, which may have megabytes and are not needed in a list.

        Args:
            created_from, created_before: seconds since 1970; the first is in, the second is not.
            metadata: entries that a job must have, all of them.
        """
        query, number = _with_metadata(select(*_LISTED).where(jobs.c.kind == kind).limit(limit + 1), metadata)
        query = query.order_by(number.desc())
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        if dataset is not None:
            query = query.where(jobs.c.dataset == dataset)
        if name is not None:
            query = query.where(jobs.c.name == name)
        if created_from is not None:
            query = query.where(jobs.c.created >= created_from)
        if created_before is not None:
            query = query.where(jobs.c.created < created_before)
        if before is not None:
            query = query.where(number < before)
        # A query for each state can follow an index in the order of ids; one for several looks at all jobs.
        queries = [query.where(jobs.c.state == state) for state in dict.fromkeys(states)] or [query]
        with snapshot(self._database) as connection:
            rows = [row for part in queries for row in connection.execute(part)]
        found = [Job(**row._mapping, **_LARGE) for row in sorted(rows, key=attrgetter("id"), reverse=True)[: limit + 1]]
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    def maybe_open_in_mlflow(self, within: float) -> Sequence[Job]:
        """Jobs and sweeps that ended within so many seconds without MLflow knowing for certain; as in `list`."""
        with reading(self._database) as connection:
            query = select(*_LISTED).where(
                jobs.c.state.in_(("failed", "cancelled")) | jobs.c.tracker_error.is_not(None),
                jobs.c.kind.in_(("train", "sweep")), jobs.c.attempt > 0, jobs.c.ended > now(connection) - within,
            )  # fmt: skip
            return [Job(**row._mapping, **_LARGE) for row in connection.execute(query)]

    def cancel(self, job_id: str) -> Job:
        """Cancel a queued job now; ask the dispatcher to stop a running one. Asking again changes nothing.

        Raises:
            NotFound: no such job.
            StateConflict: it has ended.
        """
        with writing(self._database) as connection:
            job = _locked(connection, job_id)
            if job.state in TERMINAL:
                raise StateConflict(f"the job has already ended: it {_ENDED[job.state]}")
            if job.state == "cancelling":
                return job
            moment = now(connection)
            values: dict[str, Any] = {"cancel_requested": moment, "state": "cancelling"}
            if job.state == "queued":
                values |= {"state": "cancelled", "ended": moment}
            event = NewEvent(
                "state", {"state": values["state"], "attempt": job.attempt, "reason": "cancelled on request"}
            )
            changed = connection.execute(
                update(jobs)
                .where(jobs.c.id == job_id, jobs.c.state == job.state, jobs.c.attempt == job.attempt)
                .values(last_seq=jobs.c.last_seq + 1, **values)
                .returning(jobs)
            ).one()
            append(connection, job_id, changed.last_seq, [event])
            return as_job(changed)

    def edit(self, job_id: str, changes: Mapping[str, Any]) -> Job:
        """Change name, priority or metadata: whichever are in `changes`.

        Of metadata, entries that are given replace those of the same key, and None removes one; others stay.

        Raises:
            NotFound: no such job.
            StateConflict: it has ended, so that its priority means nothing any more.
            InvalidInput: it would have too many entries.
        """
        with writing(self._database) as connection:
            job = _locked(connection, job_id)
            if "priority" in changes and job.state in TERMINAL:
                raise StateConflict(f"the job has already ended: it {_ENDED[job.state]}; its priority cannot change")
            values = dict(changes)
            if "metadata" in changes:
                both = {**job.metadata, **changes["metadata"]}
                values["metadata"] = {key: value for key, value in both.items() if value is not None}
                _replace_metadata(connection, job_id, values["metadata"])
            row = connection.execute(update(jobs).where(jobs.c.id == job_id).values(values).returning(jobs)).one()
            return as_job(row)

    def delete(self, job_id: str) -> Job:
        """Delete a job that has ended, and its events. The caller removes its files.

        Raises:
            NotFound: no such job.
            StateConflict: it has not ended, or its embeddings are being published from its files.
        """
        while True:  # events in batches: one transaction with a million of them would block all others
            with writing(self._database) as connection:
                job = _locked(connection, job_id)
                if job.state not in TERMINAL:
                    raise StateConflict(f"the job is {job.state}; cancel it first, then delete it")
                if _is_published_now(connection, job_id):
                    raise StateConflict("the job's embeddings are being published; wait until that is done")
                if not _delete_events(connection, job_id):
                    connection.execute(delete(jobs).where(jobs.c.id == job_id))
                    return job

    def using(self, dataset: str) -> int:
        """How many unfinished jobs need a data set."""
        with reading(self._database) as connection:
            return count_using(connection, dataset)

    def figures(self) -> dict[str, Any]:
        """For monitoring: jobs by kind and state, ages in seconds, and counters."""
        with reading(self._database) as connection:
            moment = now(connection)
            counts = connection.execute(select(jobs.c.kind, jobs.c.state, func.count()).group_by(*_BY_STATE)).all()
            waiting = connection.execute(select(func.min(jobs.c.created)).where(jobs.c.state == "queued")).scalar()
            running = connection.execute(
                select(jobs.c.lease_expires, jobs.c.progress).where(jobs.c.state.in_(("running", "cancelling")))
            ).all()
            counters = read_counters(connection)
        rates = [row.progress.get("epochs_per_second") or 0.0 for row in running]
        overdue = [moment - row.lease_expires for row in running if row.lease_expires is not None]
        return {
            "jobs": {(kind, state): count for kind, state, count in counts},
            "oldest_queued_seconds": 0.0 if waiting is None else max(0.0, moment - waiting),
            "longest_lease_overdue_seconds": max([0.0, *overdue]),
            "epochs_per_second": sum(rates),
            "retries": {kind: counters.get(f"retries.{kind}", 0) for kind in ("infra", "oom")},
            "tracker_errors": counters.get("tracker_errors", 0),
        }


def _hold_dataset(connection: Connection, new: NewJob) -> None:
    """Keep an uploaded data set from being deleted before this transaction ends."""
    query = select(datasets.c.ref).where(datasets.c.ref == new.dataset).with_for_update(read=True)
    if connection.execute(query).first() is None and new.is_uploaded:
        raise NotFound(f"data set {new.dataset} has just been deleted")


def insert_job(connection: Connection, new: NewJob, job_id: str | None = None) -> Job:
    """Queue a job within a transaction. Its id sorts after those there are: names that follow the newest rely on it."""
    moment = now(connection)
    newest = max(connection.execute(select(func.max(column))).scalar() or "" for column in _IDS)
    row = connection.execute(
        insert(jobs)
        .values(
            id=job_id or new_id(after=newest or None), kind=new.kind, state="queued", attempt=0,
            priority=new.priority, name=new.name,
            owner=new.owner, spec=new.spec, spec_hash=new.spec_hash, dataset=new.dataset,
            memory_bytes=new.memory_bytes, deadline=new.deadline, created=moment, not_before=moment, infra_retries=0,
            oom_retries=0, progress={}, metrics={}, relay={}, last_seq=1, metadata=new.metadata,
        )
        .returning(jobs)
    ).one()  # fmt: skip
    _replace_metadata(connection, row.id, new.metadata)
    append(connection, row.id, 1, [NewEvent("state", {"state": "queued", "attempt": 0, "reason": "submitted"})])
    return as_job(row)


def _with_metadata(query: Select[Any], metadata: Mapping[str, str]) -> tuple[Select[Any], ColumnElement[str]]:
    """Only jobs that have all these entries, and the column of their ids to sort by: that of the index in use."""
    number: ColumnElement[str] = jobs.c.id
    for at, (key, value) in enumerate(metadata.items()):
        entry = job_metadata.alias()
        query = query.join(entry, entry.c.job_id == jobs.c.id).where(entry.c.key == key, entry.c.value == value)
        number = number if at else entry.c.job_id
    return query, number


def _replace_metadata(connection: Connection, job_id: str, metadata: Mapping[str, str]) -> None:
    """Raises InvalidInput if there are too many entries."""
    if len(metadata) > MOST_METADATA:
        raise InvalidInput(f"metadata: would have {len(metadata)} entries; a job may have up to {MOST_METADATA}")
    connection.execute(delete(job_metadata).where(job_metadata.c.job_id == job_id))
    if metadata:
        rows = [{"job_id": job_id, "key": key, "value": value} for key, value in metadata.items()]
        connection.execute(insert(job_metadata), rows)


def as_job(row: Row[Any]) -> Job:
    return Job(**row._mapping)


def count_using(connection: Connection, dataset: str) -> int:
    """Unfinished jobs that read the graph itself: publishing and indexing read only what training wrote."""
    reads = jobs.c.kind.in_(("train", "sweep"))
    query = select(func.count()).where(jobs.c.dataset == dataset, jobs.c.state.in_(ACTIVE), reads)
    return int(connection.execute(query).scalar_one())


def is_active(connection: Connection, job_id: str) -> bool:
    """Whether a job exists and has not ended."""
    query = select(jobs.c.id).where(jobs.c.id == job_id, jobs.c.state.in_(ACTIVE))
    return connection.execute(query).first() is not None


def _is_published_now(connection: Connection, job_id: str) -> bool:
    query = select(embeddings.c.job_id).where(embeddings.c.version == job_id, embeddings.c.state == "publishing")
    publisher = connection.execute(query).scalar()
    return publisher is not None and is_active(connection, publisher)


def _delete_events(connection: Connection, job_id: str) -> int:
    """Delete some of a job's events; returns how many there were to delete."""
    first = connection.execute(select(func.min(events.c.seq)).where(events.c.job_id == job_id)).scalar()
    if first is None:
        return 0
    upto = first + _DELETED_AT_ONCE
    return connection.execute(delete(events).where(events.c.job_id == job_id, events.c.seq < upto)).rowcount


def _locked(connection: Connection, job_id: str) -> Job:
    """The job, locked until the transaction ends."""
    row = connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update()).first()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    return as_job(row)


def _promised(connection: Connection, promise: Idempotency | None) -> Job | None:
    """The job that an earlier request with this key made."""
    if promise is None:
        return None
    kept = connection.execute(
        select(promises).where(promises.c.owner == (promise.owner or ""), promises.c.key == promise.key)
    ).first()
    if kept is None:
        return None
    if kept.request_hash != promise.request_hash:
        raise IdempotencyConflict("this Idempotency-Key was used for another request; use a new one")
    row = connection.execute(select(jobs).where(jobs.c.id == kept.job_id)).first()
    return None if row is None else as_job(row)  # None: deleted meanwhile


def _keep_promise(connection: Connection, promise: Idempotency, job: Job) -> None:
    connection.execute(
        insert(promises).values(
            owner=promise.owner or "", key=promise.key, request_hash=promise.request_hash, job_id=job.id,
            created=job.created,
        )
    )  # fmt: skip


def _check_quota(connection: Connection, owner: str | None, max_active: int | None) -> None:
    if max_active is None:
        return
    hold(connection, QUOTAS, owner or "")  # else concurrent requests would all count the same few jobs
    mine = jobs.c.owner.is_(None) if owner is None else jobs.c.owner == owner
    asked = jobs.c.kind.not_in(("publish", "index"))  # the service submits those itself
    active = connection.execute(select(func.count()).where(mine, jobs.c.state.in_(ACTIVE), asked)).scalar_one()
    if active >= max_active:
        raise QuotaExceeded(f"{active} unfinished jobs, and the limit is {max_active}; wait, or cancel some")


_IS_JSON = tuple(isinstance(column.type, Json) for column in jobs.c)  # Job has the columns' names and order
_LARGE: dict[str, Any] = {"spec": {}, "relay": {}}  # what a job in a list has instead
_LISTED = [column for column in jobs.c if column.name not in _LARGE]
_IDS = (jobs.c.id, embeddings.c.version)
_DELETED_AT_ONCE = 10_000
_BY_STATE = (jobs.c.kind, jobs.c.state)
_ENDED: dict[State, str] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled"}
