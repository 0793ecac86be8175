"""Brings the tables up to date with Alembic, once, however many processes start together.

The first of them migrates, in one transaction; the others wait for it, and then find nothing to do. Who waits waits
long enough for a large table, and no longer: on PostgreSQL the lock is the transaction's own, so that it goes with a
process that is killed, and half a minute later (idle_in_transaction_session_timeout) with one that is cut off.
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
_WAIT_SECONDS = 600  # for another's migration
_TABLE_SECONDS = 10  # for a table that running processes use: who asks for it after us waits as long
log = logging.getLogger("service.store")


def migrate(database: Database, home: Path) -> None:
    """Upgrade to the newest revision; at once done where it is there already.

    Raises:
        Unavailable: the database does not answer, or another is still migrating after ten minutes; call again.
        Infrastructure: the database was made by a newer version.
    """
    scripts = ScriptDirectory(str(_SCRIPTS))
    head = scripts.get_current_head()
    with reading(database) as connection:
        if _revision(connection) == head:
            return
    with _alone(database, home) as connection:
        found = _revision(connection)  # again: others may have been faster
        if found == head:
            return
        if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
            raise Infrastructure(
                f"the database has revision {found}, which this version does not know. Run the version that made it, "
                "or a newer one."
            )
        config = Config()
        config.set_main_option("script_location", str(_SCRIPTS))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    log.info("the database went from revision %s to %s", found or "none", head)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _alone(database: Database, home: Path) -> Iterator[Connection]:
    """A transaction with the right to migrate; others wait. The right is freed by the system if we die."""
    if database.is_postgresql:
        with writing(database) as connection:
            # The limits that all connections have are for requests: a large table takes longer to change.
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
