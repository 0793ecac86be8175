"""The time by which leases are judged: the database's, so that machines need not agree."""

from __future__ import annotations

import time

from sqlalchemy import Connection, text


def now(connection: Connection) -> float:
    """Seconds since 1970."""
    if connection.dialect.name != "postgresql":  # SQLite lives on this machine
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
