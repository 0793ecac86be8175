"""Advisory locks of PostgreSQL, for what is counted or looked for before it is written. SQLite has one writer anyway.

The numbers are in one place so that no two uses take the same.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

MIGRATIONS = 7_305_004  # any numbers that nobody else takes in this database
DATASET_NAMES = 7_305_005
QUOTAS = 7_305_006


def hold(connection: Connection, space: int, name: str) -> None:
    """Nobody else holds this name of that space until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(space, func.hashtext(name))))
