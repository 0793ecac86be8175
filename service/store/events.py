"""What happened to each job, in order and without gaps.

Numbers are given while the job's row is locked by the same transaction, so they rise in the order of commits: who has
read number n has missed nothing before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection, Row, insert, select

from service.store.engine import Database, reading
from service.store.records import Event, NewEvent
from service.store.tables import events, jobs

_ASKED_AT_ONCE = 500  # ids in one query
_PAGE = 1_000


class Events:
    """Reading; writing is part of a job's transitions (service.store.jobs)."""

    def __init__(self, database: Database):
        self._database = database

    def after(self, job_id: str, seq: int, limit: int = 1_000) -> list[Event]:
        """The next events of a job after number `seq`, oldest first."""
        query = select(events).where(events.c.job_id == job_id, events.c.seq > seq).order_by(events.c.seq).limit(limit)
        with reading(self._database) as connection:
            return [_event(row) for row in connection.execute(query)]

    def last_seqs(self, job_ids: Sequence[str]) -> dict[str, int]:
        """The newest number of each job that exists."""
        found: dict[str, int] = {}
        with reading(self._database) as connection:
            for start in range(0, len(job_ids), _ASKED_AT_ONCE):
                part = job_ids[start : start + _ASKED_AT_ONCE]
                rows = connection.execute(select(jobs.c.id, jobs.c.last_seq).where(jobs.c.id.in_(part)))
                found.update({row.id: row.last_seq for row in rows})
        return found

    def epoch(self, job_id: str, epoch: int) -> Event | None:
        """The newest event of type "epoch" with that number."""
        query = (
            select(events)
            .where(events.c.job_id == job_id, events.c.type == "epoch", events.c.epoch == epoch)
            .order_by(events.c.seq.desc())
            .limit(1)
        )
        with reading(self._database) as connection:
            row = connection.execute(query).first()
        return None if row is None else _event(row)

    def series(self, job_id: str, *, every: int = 1) -> Iterator[Event]:
        """Events of types "epoch" and "rewind", in order: the loss curve, and what was taken back of it.

        Read page by page, so that a million epochs take the memory of a thousand.

        Args:
            every: of the epochs, only those whose number is divisible by it.
        """
        after = 0
        while True:
            query = (
                select(events)
                .where(events.c.job_id == job_id, events.c.seq > after, events.c.type.in_(("epoch", "rewind")))
                .order_by(events.c.seq)
                .limit(_PAGE)
            )
            if every > 1:
                query = query.where((events.c.type == "rewind") | (events.c.epoch % every == 0))
            with reading(self._database) as connection:
                page = [_event(row) for row in connection.execute(query)]
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].seq


def append(connection: Connection, job_id: str, last_seq: int, new: Iterable[NewEvent]) -> None:
    """Store events so that the last gets number `last_seq`, which the same transaction has just given the job."""
    rows = [
        {
            "job_id": job_id, "time": time.time() if event.time is None else event.time, "type": event.type,
            "epoch": event.epoch, "data": event.data,
        }
        for event in new
    ]  # fmt: skip
    if rows:
        first = last_seq - len(rows) + 1
        connection.execute(insert(events), [{**row, "seq": first + at} for at, row in enumerate(rows)])


def _event(row: Row[tuple[object, ...]]) -> Event:
    return Event(**row._mapping)
