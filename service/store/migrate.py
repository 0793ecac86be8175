"""Brings the tables up to date with Alembic, once, however many processes start together.

The first of them migrates, in one transaction; the others wait for it, long enough for a large table, and then find
nothing to do. On PostgreSQL the lock belongs to the transaction: it is freed when a process is killed, and half a
minute after one is cut off (idle_in_transaction_session_timeout).
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from service.store.engine import Database, reading, writing
from service.store.locks import MIGRATIONS
from trainer.errors import Infrastructure

_SCRIPTS = Path(__file__).parent / "migrations"
_WAIT_SECONDS = 600  # for the migration of another process
_TABLE_SECONDS = 10  # for a table in use: whoever asks for it after us waits as long
log = logging.getLogger("service.store")


def migrate(database: Database, home: Path) -> None:
    """Upgrade to the newest revision, unless it is there already.

    Raises:
        Unavailable: the database does not answer, or another process is still migrating after ten minutes.
        Infrastructure: the database was made by a newer version.
    """
    scripts = ScriptDirectory(str(_SCRIPTS))
    head = scripts.get_current_head()
    with reading(database) as connection:
        if _revision(connection) == head:
            return
    with _alone(database, home) as connection:
        found = _revision(connection)  # again: another process may have been faster
        if found == head:
            return
        if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
            raise Infrastructure(
                f"the database has revision {found}, which this version does not know. Run the version that "
                "created it, or a newer one."
            )
        config = Config()
        config.set_main_option("script_location", str(_SCRIPTS))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    log.info("migrated the database from revision %s to %s", found or "none", head)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _alone(database: Database, home: Path) -> Iterator[Connection]:
    """A transaction that holds the migration lock; other processes wait. The lock is freed if we die."""
    if database.is_postgresql:
        with writing(database) as connection:
            # The usual limits are for requests; changing a large table takes longer.
            connection.execute(text(f"SET LOCAL lock_timeout = '{_WAIT_SECONDS}s'"))
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATIONS})"))
            connection.execute(text(f"SET LOCAL lock_timeout = '{_TABLE_SECONDS}s'"))
            yield connection
        return
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".migrate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with writing(database) as connection:
            yield connection
