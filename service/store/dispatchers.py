"""Which dispatchers are alive, for readiness and monitoring. Leases alone decide who may change a job."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from service.store.clock import now
from service.store.engine import Database, reading, writing
from service.store.records import DispatcherRecord
from service.store.tables import dispatchers

_FORGOTTEN_AFTER = 86_400.0  # seconds since a dispatcher was last seen


class Dispatchers:
    """Every method is one transaction. All raise Unavailable where the database does not answer."""

    def __init__(self, database: Database):
        self._database = database

    def beat(self, identity: str, *, host: str, pid: int, info: dict[str, Any]) -> None:
        """Record that a dispatcher is alive."""
        with writing(self._database) as connection:
            moment = now(connection)
            dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
            values = {"host": host, "pid": pid, "seen": moment, "info": info}
            statement = dialect.insert(dispatchers).values(id=identity, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=[dispatchers.c.id], set_=values))
            # Not those that beat at this very moment, after a day without a database: they would wait for each other.
            forgotten = select(dispatchers.c.id).where(dispatchers.c.seen < moment - _FORGOTTEN_AFTER)
            there = forgotten.with_for_update(skip_locked=True)
            connection.execute(delete(dispatchers).where(dispatchers.c.id.in_(there)))

    def alive(self, within_seconds: float) -> list[DispatcherRecord]:
        """The dispatchers seen within the last seconds; not those seen before the clock was put back."""
        with reading(self._database) as connection:
            moment = now(connection)
            seen = dispatchers.c.seen.between(moment - within_seconds, moment + within_seconds)
            query = select(dispatchers).where(seen)
            return [DispatcherRecord(**row._mapping) for row in connection.execute(query)]

    def remove(self, identity: str) -> None:
        """Record that a dispatcher has ended."""
        with writing(self._database) as connection:
            connection.execute(delete(dispatchers).where(dispatchers.c.id == identity))
