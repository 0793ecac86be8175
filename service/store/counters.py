"""Counters that only grow, kept apart from the jobs so that deleting a job does not lower them."""

from __future__ import annotations

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from service.store.tables import counters


def increase(connection: Connection, name: str) -> None:
    """Add one, within a transaction."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(counters).values(name=name, value=1)
    connection.execute(
        statement.on_conflict_do_update(index_elements=[counters.c.name], set_={"value": counters.c.value + 1})
    )


def read_counters(connection: Connection) -> dict[str, int]:
    return {row.name: row.value for row in connection.execute(select(counters))}
