"""Published embeddings: immutable versions, each made by a publishing job from what a training job left.

    publishing → ready | failed; ready → damaged        (failed or damaged → publishing, if someone asks again)

A version has the id of its training job as name. The row is made in the transaction that ends the training job, so
that a job which succeeded is published whatever happens to processes. service.store.aliases tells how writers exclude
each other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, Text, delete, insert, or_, select, type_coerce, update

from service.store.aliases import REVISION, changed, drop, find_alias, lock_catalog, point
from service.store.clock import now
from service.store.engine import Database, read_row, reading, snapshot, writing
from service.store.errors import Fenced, InUse, NotFound, StateConflict
from service.store.jobs import as_job, insert_job, is_active
from service.store.owners import speaks_for
from service.store.records import TERMINAL, Embedding, Job, NewJob, Snapshot, automatic_aliases, bare_name
from service.store.tables import Json, aliases, deleted_versions, embeddings, jobs

_REMEMBERED = 30 * 86_400.0  # seconds for which files of a deleted version are looked for


class Embeddings:
    """Every method is one transaction. All raise Unavailable where the database does not answer."""

    def __init__(self, database: Database):
        self._database = database
        placeholder = "%s" if database.is_postgresql else "?"
        self._read: dict[str, tuple[tuple[Any, ...], Embedding]] = {}  # by version: its row at the last snapshot
        self._revision = f"SELECT value FROM counters WHERE name = {placeholder}"

    def create(self, job: Job, publish: NewJob) -> tuple[Embedding, bool]:
        """Publish what a training job left; a version that is ready or being published stays as it is.

        One that failed or is damaged is published anew. Returns it and whether a job was queued.

        Raises:
            NotFound: the training job is no more.
            StateConflict: it has left no embeddings.
        """
        with writing(self._database) as connection:
            row = connection.execute(select(jobs).where(jobs.c.id == job.id).with_for_update()).first()
            if row is None:
                raise NotFound(f"there is no job {job.id}")
            source = as_job(row)
            if source.kind != "train" or source.state != "succeeded" or not (source.result or {}).get("embeddings"):
                raise StateConflict(f"job {job.id} has no embeddings: it is a {source.kind} job, {source.state}")
            lock_catalog(connection)
            there = _find(connection, job.id)
            if there is not None and (there.state == "ready" or _is_being_published(connection, there)):
                return there, False
            connection.execute(delete(embeddings).where(embeddings.c.version == job.id))
            return begin_publishing(connection, source, publish), True

    def get(self, version: str) -> Embedding | None:
        with reading(self._database) as connection:
            return _find(connection, version)

    def finish(
        self, version: str, job_id: str, *, about: dict[str, Any] | None = None, failure: str | None = None,
        index: NewJob | None = None,
    ) -> Embedding:  # fmt: skip
        """What publishing came to: what is known about it, or why it failed. Automatic aliases follow.

        Args:
            index: build a search index too.

        Raises:
            Fenced: the version is not being published by that job.
        """
        if (about is None) == (failure is None):
            raise ValueError("give either what is known about it, or why it failed")
        with writing(self._database) as connection:
            lock_catalog(connection)
            there = _find(connection, version)
            if there is None or there.state != "publishing" or there.job_id != job_id:
                raise Fenced(f"embeddings {version} are not being published by job {job_id}")
            if about is None:
                return _change(connection, version, state="failed", failure=failure)
            indexes = {} if index is None else _building(connection, index)
            ready = {"state": "ready", "published": now(connection), "about": about, "indexes": indexes}
            made = _change(connection, version, **ready)
            _follow(connection, made)
            return made

    def damage(self, version: str, why: str) -> bool:
        """A version whose files are not what was published is served no more; returns whether it was until now."""
        with writing(self._database) as connection:
            lock_catalog(connection)
            there = _find(connection, version)
            if there is None or there.state != "ready":
                return False
            _change(connection, version, state="damaged", failure=why)
            return True

    def build_index(self, version: str, kind: str, job: NewJob) -> tuple[Embedding, bool]:
        """Queue the building of a search index, unless that kind is there or being built.

        Raises:
            NotFound: no such version.
            StateConflict: it is not ready.
        """
        with writing(self._database) as connection:
            lock_catalog(connection)
            there = _found(connection, version)
            if there.state != "ready":
                raise StateConflict(f"embeddings {version} are not ready but {there.state}")
            entry = there.indexes.get(kind, {})
            if entry.get("state") == "ready" or _is_being_built(connection, entry):
                return there, False
            indexes = there.indexes | _building(connection, job, kind)
            return _change(connection, version, indexes=indexes), True

    def finish_index(
        self, version: str, kind: str, job_id: str, *, about: dict[str, Any] | None = None, failure: str | None = None
    ) -> Embedding:
        """What the building of an index came to.

        Raises:
            Fenced: that index is not being built by that job.
        """
        if (about is None) == (failure is None):
            raise ValueError("give either what is known about it, or why it failed")
        with writing(self._database) as connection:
            lock_catalog(connection)
            there = _find(connection, version)
            entry = {} if there is None else there.indexes.get(kind, {})
            if there is None or entry.get("state") != "building" or entry.get("job") != job_id:
                raise Fenced(f"index {kind} of embeddings {version} is not being built by job {job_id}")
            ended = {"failure": failure} if about is None else about
            entry = {**ended, "state": "failed" if about is None else "ready", "job": job_id}
            return _change(connection, version, indexes=there.indexes | {kind: entry})

    def delete(self, version: str) -> Embedding:
        """Forget a version; its files (`remove_files`) and ended jobs are the caller's to remove.

        Automatic aliases fall back.

        Raises:
            NotFound: no such version.
            InUse: it is being published or indexed, or an alias that someone has set points to it.
        """
        with writing(self._database) as connection:
            lock_catalog(connection)
            there = _found(connection, version)
            if _is_being_published(connection, there):
                raise InUse(f"embeddings {version} are being published; wait until that is done")
            if any(_is_being_built(connection, entry) for entry in there.indexes.values()):
                raise InUse(f"a search index of embeddings {version} is being built; wait until that is done")
            pointing = connection.execute(select(aliases).where(aliases.c.version == version)).all()
            held = sorted(alias.name for alias in pointing if not alias.automatic)
            if held:
                raise InUse(f"alias {', '.join(held[:10])} points to embeddings {version}; move it first, or remove it")
            connection.execute(delete(embeddings).where(embeddings.c.version == version))
            connection.execute(delete(deleted_versions).where(deleted_versions.c.version == version))
            connection.execute(insert(deleted_versions).values(version=version, time=now(connection)))
            for alias in pointing:
                _fall_back(connection, alias.name)
            changed(connection)
            return there

    def remove_files(self, version: str, set_aside: Callable[[], None]) -> bool:
        """Call `set_aside` if the version was deleted and not published anew; nobody can do that meanwhile.

        It must be quick: on SQLite nobody else can write until it returns. Returns whether it was called.
        """
        with writing(self._database) as connection:
            query = select(deleted_versions.c.version).where(deleted_versions.c.version == version)
            if connection.execute(query.with_for_update()).first() is None:
                return False
            set_aside()
            return True

    def deleted(self) -> list[str]:
        """Versions that were deleted lately: a process that was killed may have left files of them."""
        with writing(self._database) as connection:
            long_ago = now(connection) - _REMEMBERED
            connection.execute(delete(deleted_versions).where(deleted_versions.c.time < long_ago))
            return list(connection.execute(select(deleted_versions.c.version)).scalars())

    def jobs_of_deleted(self, limit: int) -> list[str]:
        """Some ended jobs that have published or indexed versions which were deleted lately, at most `limit`."""
        ended = select(jobs.c.id, jobs.c.spec).where(jobs.c.kind.in_(("publish", "index")), jobs.c.state.in_(TERMINAL))
        with reading(self._database) as connection:
            gone = set(connection.execute(select(deleted_versions.c.version)).scalars())
            found = (row.id for row in connection.execute(ended) if row.spec.get("version") in gone) if gone else ()
            return list(islice(found, limit))

    def revision(self) -> int:
        """Grows with every change of a version or an alias."""
        row = read_row(self._database, self._revision, REVISION)
        return 0 if row is None else int(row[0])

    def snapshot(self) -> Snapshot:
        """Everything, as it was at one moment. Reading rows is cheap, their JSON is not: only new ones are parsed."""
        with snapshot(self._database) as connection:
            revision = connection.exec_driver_sql(self._revision, (REVISION,)).scalar()
            rows = connection.execute(select(*_AS_STORED)).all()
            names = connection.execute(select(aliases.c.name, aliases.c.version)).all()
        known, self._read = self._read, {}
        for row in map(tuple, rows):
            before = known.get(row[0])
            self._read[row[0]] = before if before is not None and before[0] == row else (row, _parsed(row))
        versions = {version: embedding for version, (_, embedding) in self._read.items()}
        return Snapshot(revision or 0, versions, {alias.name: alias.version for alias in names})

    def unfinished(self) -> list[Embedding]:
        """Those being published, or with an index being built."""
        building = type_coerce(embeddings.c.indexes, Text).contains('"building"')
        query = select(*_COLUMNS).where(or_(embeddings.c.state == "publishing", building))
        with reading(self._database) as connection:
            return [_embedding(row) for row in connection.execute(query)]

    def expired(self, *, keep: int, seconds: float, at: float | None = None) -> list[str]:
        """Ready versions that the rules of retention no longer keep, oldest first.

        One to which someone has let an alias point is kept, and of each data set the newest of each key: what others
        train on it takes nobody's place.

        Args:
            keep: so many of the newest others of each data set and key; 0: all.
            seconds: those published so lately; 0: all.
            at: seconds since 1970, if earlier than the database's clock: that may have jumped ahead.
        """
        ready = select(embeddings.c.version, embeddings.c.dataset_name, embeddings.c.owner, embeddings.c.published)
        ready = ready.where(embeddings.c.state == "ready").order_by(embeddings.c.version.desc())
        with snapshot(self._database) as connection:
            moment = now(connection) if at is None else min(at, now(connection))
            rows = connection.execute(ready).all()
            held = set(connection.execute(select(aliases.c.version).where(~aliases.c.automatic)).scalars())
        newest: dict[tuple[str, str | None], str] = {}
        counts: defaultdict[tuple[str, str | None], int] = defaultdict(int)
        found = []
        for row in rows:
            line = row.dataset_name, row.owner
            is_newest = newest.setdefault(line, row.version) == row.version
            if row.version in held:
                continue
            counts[line] += 1
            is_surplus = keep > 0 and counts[line] > keep
            is_old = seconds > 0 and row.published is not None and moment - row.published > seconds
            if (is_surplus or is_old) and not is_newest:
                found.append(row.version)
        return found[::-1]

    def list(
        self, *, dataset: str | None = None, before: str | None = None, limit: int = 50
    ) -> tuple[list[Embedding], str | None]:
        """A page, newest first, and the cursor of the next page, None on the last.

        Args:
            dataset: with its version, or without for all versions of it.
        """
        query = select(*_COLUMNS).order_by(embeddings.c.version.desc()).limit(limit + 1)
        if dataset is not None:
            query = query.where(or_(embeddings.c.dataset == dataset, embeddings.c.dataset_name == dataset))
        if before is not None:
            query = query.where(embeddings.c.version < before)
        with reading(self._database) as connection:
            found = [_embedding(row) for row in connection.execute(query)]
        return found[:limit], found[limit - 1].version if len(found) > limit else None


def begin_publishing(connection: Connection, job: Job, publish: NewJob) -> Embedding:
    """A new version of what a training job left, and the job that publishes it, within a transaction."""
    lock_catalog(connection)
    connection.execute(delete(deleted_versions).where(deleted_versions.c.version == job.id))  # its files are ours again
    queued = insert_job(connection, publish)
    metrics = (job.result or {}).get("metrics") or {}
    row = connection.execute(
        insert(embeddings)
        .values(
            version=job.id, job_id=queued.id, state="publishing", owner=job.owner, name=job.name, dataset=job.dataset,
            dataset_name=bare_name(job.dataset), created=queued.created, metrics=metrics, indexes={},
        )
        .returning(*_COLUMNS)
    ).one()  # fmt: skip
    changed(connection)
    return _embedding(row)


def _follow(connection: Connection, made: Embedding) -> None:
    """Move the automatic aliases to a new version; never back to one that is older than where they point."""
    for name in _aliases_for(connection, made.owner, made.dataset):
        present = find_alias(connection, name)
        if present is None or present.version < made.version:
            previous = None if present is None else present.seq
            point(connection, name, made.version, owner=None, reason="automatic", previous=previous)


def _aliases_for(connection: Connection, owner: str | None, dataset: str) -> tuple[str, ...]:
    """The automatic aliases that follow what `owner` trains: that of a data set only if they may speak for it."""
    everyones, own = automatic_aliases(dataset)
    return (everyones, own) if speaks_for(connection, owner, dataset) else (everyones,)


def _fall_back(connection: Connection, name: str) -> None:
    """Move an automatic alias whose version is gone to the newest that is left for it, or remove it."""
    columns = embeddings.c.version, embeddings.c.dataset, embeddings.c.owner
    ready = select(*columns).where(embeddings.c.state == "ready").order_by(embeddings.c.version.desc())
    for row in connection.execute(ready).all():
        if name in automatic_aliases(row.dataset) and name in _aliases_for(connection, row.owner, row.dataset):
            point(connection, name, row.version, owner=None, reason="automatic", previous=None)
            return
    drop(connection, name, owner=None)


def _building(connection: Connection, job: NewJob, kind: str | None = None) -> dict[str, dict[str, Any]]:
    return {kind or str(job.spec["kind"]): {"state": "building", "job": insert_job(connection, job).id}}


def _is_being_published(connection: Connection, there: Embedding) -> bool:
    """False if the job ended without recording a result, for example because it was cancelled."""
    return there.state == "publishing" and is_active(connection, there.job_id)


def _is_being_built(connection: Connection, entry: dict[str, Any]) -> bool:
    return entry.get("state") == "building" and is_active(connection, str(entry.get("job")))


def _find(connection: Connection, version: str) -> Embedding | None:
    row = connection.execute(select(*_COLUMNS).where(embeddings.c.version == version)).first()
    return None if row is None else _embedding(row)


def _found(connection: Connection, version: str) -> Embedding:
    there = _find(connection, version)
    if there is None:
        raise NotFound(f"there are no embeddings {version}")
    return there


def _change(connection: Connection, version: str, **values: Any) -> Embedding:
    changed(connection)
    query = update(embeddings).where(embeddings.c.version == version).values(**values).returning(*_COLUMNS)
    return _embedding(connection.execute(query).one())


def _parsed(row: tuple[Any, ...]) -> Embedding:
    """From columns as they are stored."""
    values = (
        json.loads(value) if isinstance(column.type, Json) and value is not None else value
        for column, value in zip(_COLUMNS, row, strict=True)
    )
    return _short(Embedding(*values))


def _short(embedding: Embedding) -> Embedding:
    if embedding.about is None:
        return embedding
    return replace(embedding, about={name: value for name, value in embedding.about.items() if name != "export"})


def _embedding(row: Row[Any]) -> Embedding:
    return Embedding(**row._mapping)


_COLUMNS = [column for column in embeddings.c if column.name != "dataset_name"]  # as Embedding has them
_AS_STORED = [type_coerce(column, Text) if isinstance(column.type, Json) else column for column in _COLUMNS]
