"""Uploaded data sets: immutable versions, each checked by an import job before it can be used."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.store.engine import Database, reading, writing
from service.store.errors import Fenced, InUse, NotAllowed, NotFound, QuotaExceeded
from service.store.jobs import count_using, insert_job
from service.store.locks import DATASET_NAMES, QUOTAS, hold
from service.store.owners import MayChange, anyone, name_owner
from service.store.records import Dataset, NewJob
from service.store.tables import datasets


class Datasets:
    """Every method is one transaction. All raise Unavailable where the database does not answer."""

    def __init__(self, database: Database):
        self._database = database

    def create(
        self,
        name: str,
        version: str,
        *,
        options: dict[str, Any],
        size: int,
        job: NewJob,
        may_change: MayChange = anyone,
        most_bytes: int | None = None,
    ) -> tuple[Dataset, bool]:
        """A new version and the job that checks it; a version that is ready or being checked stays as it is.

        A version that failed before is checked again. Returns it and whether a job was queued.

        Args:
            may_change: is asked whether the caller may add to the data sets of the name's owner.
            most_bytes: quota of all data sets of the owner.

        Raises:
            NotAllowed: the name belongs to another key.
            QuotaExceeded: the owner would have more bytes than that.
        """
        for last_try in (False, True):
            try:
                return self._create(name, version, options, size, job, may_change, most_bytes)
            except IntegrityError:  # the same version was made concurrently: it is there now
                if last_try:
                    raise
        raise AssertionError

    def check_owner(self, name: str, may_change: MayChange) -> None:
        """A name belongs to the key that made its first version, as jobs that use the bare name get the newest one.

        Raises:
            NotAllowed: it belongs to another key.
        """
        with reading(self._database) as connection:
            _check_owner(connection, name, may_change)

    def get(self, ref: str) -> Dataset | None:
        with reading(self._database) as connection:
            row = connection.execute(select(datasets).where(datasets.c.ref == ref)).first()
        return None if row is None else _dataset(row)

    def versions(self, name: str) -> list[Dataset]:
        """All versions of that name, newest first."""
        query = select(datasets).where(datasets.c.name == name).order_by(datasets.c.created.desc(), datasets.c.ref)
        with reading(self._database) as connection:
            return [_dataset(row) for row in connection.execute(query)]

    def newest(self, name: str) -> Dataset | None:
        """The newest version that is ready, else the newest of any state; None if there is no such name."""
        found = self.versions(name)
        return next((version for version in found if version.state == "ready"), found[0] if found else None)

    def list(self, *, after: str | None = None, limit: int = 100) -> tuple[list[Dataset], str | None]:
        """A page in the order of refs, and the cursor of the next page, None on the last."""
        query = select(datasets).order_by(datasets.c.ref).limit(limit + 1)
        if after is not None:
            query = query.where(datasets.c.ref > after)
        with reading(self._database) as connection:
            found = [_dataset(row) for row in connection.execute(query)]
        return found[:limit], found[limit - 1].ref if len(found) > limit else None

    def finish(
        self, ref: str, job_id: str, *, about: dict[str, Any] | None = None, size: int | None = None,
        failure: str | None = None, most_bytes: int | None = None,
    ) -> Dataset:  # fmt: skip
        """Record the result of the check: counts, or why it failed.

        Args:
            size: bytes of the graph on disk, which count from now on instead of those that were uploaded.
            most_bytes: quota of all data sets of the owner; several may have been checked at a time.

        Raises:
            Fenced: the version is not being checked by that job.
            QuotaExceeded: with `size` the owner would have more bytes than that; nothing is recorded.
        """
        if (about is None) == (failure is None):
            raise ValueError("give either `about` or `failure`")
        state = "ready" if failure is None else "failed"
        stored = {} if size is None else {"bytes": size}
        with writing(self._database) as connection:
            there = _locked(connection, ref)
            if there is not None and there.owner is not None and size is not None and most_bytes is not None:
                hold(connection, QUOTAS, there.owner)
                if _bytes_of(connection, there.owner) - there.bytes + size > most_bytes:
                    raise QuotaExceeded(_USED_UP)
            row = connection.execute(
                update(datasets)
                .where(datasets.c.ref == ref, datasets.c.job_id == job_id, datasets.c.state == "checking")
                .values(state=state, about=about, failure=failure, **stored)
                .returning(datasets)
            ).first()
        if row is None:
            raise Fenced(f"data set {ref} is not being checked by job {job_id}")
        return _dataset(row)

    def delete(self, ref: str) -> Dataset:
        """Delete a version. The caller removes its files.

        Raises:
            NotFound: no such version.
            InUse: a job that has not ended needs it, or it is being checked.
        """
        with writing(self._database) as connection:
            there = _locked(connection, ref)
            if there is None:
                raise NotFound(f"there is no data set {ref}")
            if there.state == "checking":
                raise InUse(f"data set {ref} is still being checked; delete it again when that has ended")
            users = count_using(connection, ref)
            if users:
                raise InUse(f"{users} unfinished job{'s' * (users > 1)} need data set {ref}; wait, or cancel first")
            connection.execute(delete(datasets).where(datasets.c.ref == ref))
        return there

    def bytes_of(self, owner: str | None) -> int:
        """Bytes uploaded by one key, of versions that are there or being checked."""
        with reading(self._database) as connection:
            return _bytes_of(connection, owner)

    def _create(
        self, name: str, version: str, options: dict[str, Any], size: int, job: NewJob, may_change: MayChange,
        most_bytes: int | None,
    ) -> tuple[Dataset, bool]:  # fmt: skip
        ref = f"{name}.{version}"
        with writing(self._database) as connection:
            hold(connection, DATASET_NAMES, name)  # two keys may claim it concurrently
            if most_bytes is not None:
                hold(connection, QUOTAS, job.owner or "")
            there = _locked(connection, ref)
            if there is not None and there.state != "failed":
                return there, False
            _check_owner(connection, name, may_change)
            if most_bytes is not None and _bytes_of(connection, job.owner) + size > most_bytes:
                raise QuotaExceeded(_USED_UP)
            if there is not None:  # only the row we saw: one made meanwhile is another check
                connection.execute(delete(datasets).where(datasets.c.ref == ref))
            queued = insert_job(connection, job)
            row = connection.execute(
                insert(datasets)
                .values(
                    ref=ref, name=name, version=version, state="checking", job_id=queued.id, owner=job.owner,
                    created=queued.created, options=options, bytes=size,
                )
                .returning(datasets)
            ).one()  # fmt: skip
            return _dataset(row), True


_USED_UP = "the quota of this key is used up; delete data sets, or ask for a larger quota"


def _bytes_of(connection: Connection, owner: str | None) -> int:
    mine = datasets.c.owner.is_(None) if owner is None else datasets.c.owner == owner
    query = select(func.coalesce(func.sum(datasets.c.bytes), 0)).where(mine, datasets.c.state != "failed")
    return int(connection.execute(query).scalar_one())


def _check_owner(connection: Connection, name: str, may_change: MayChange) -> None:
    found = name_owner(connection, name)
    if found is not None and not may_change(found[0]):
        raise NotAllowed("data sets of this name were made with another key; choose another name")


def _locked(connection: Connection, ref: str) -> Dataset | None:
    row = connection.execute(select(datasets).where(datasets.c.ref == ref).with_for_update()).first()
    return None if row is None else _dataset(row)


def _dataset(row: Row[Any]) -> Dataset:
    return Dataset(**row._mapping)
