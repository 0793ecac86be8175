"""PostgreSQL's advisory locks, for what is counted or looked up before it is written. SQLite has one writer anyway.

All numbers are here, so that no two uses share one.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

MIGRATIONS = 7_305_004  # arbitrary numbers that nothing else uses in this database
DATASET_NAMES = 7_305_005
QUOTAS = 7_305_006


def hold(connection: Connection, space: int, name: str) -> None:
    """Hold the lock of this name in that space until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(space, func.hashtext(name))))
