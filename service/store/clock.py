"""The clock by which leases expire, the database's, so that machines need not agree; and how times are written."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from sqlalchemy import Connection, text


def now(connection: Connection) -> float:
    """Seconds since 1970."""
    if connection.dialect.name != "postgresql":  # SQLite is on this machine
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def moment(seconds: float | None) -> str | None:
    """Seconds since 1970 as ISO 8601 in UTC, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
