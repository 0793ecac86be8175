"""Brings the tables up to date with Alembic, once, however many processes start together."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from service.store.engine import Database, reading, writing
from trainer.errors import Infrastructure

_SCRIPTS = Path(__file__).parent / "migrations"
_POSTGRES_LOCK = 7_305_004  # any number that nobody else takes for an advisory lock in this database


def migrate(database: Database, home: Path) -> None:
    """Upgrade to the newest revision; at once done where it is there already.

    Raises:
        Unavailable: the database does not answer.
        Infrastructure: the database was made by a newer version.
    """
    scripts = ScriptDirectory(str(_SCRIPTS))
    if _revision(database) == scripts.get_current_head():
        return
    with _alone(database, home):
        found = _revision(database)
        if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
            raise Infrastructure(
                f"the database has revision {found}, which this version does not know. Run the version that made it, "
                "or a newer one."
            )
        config = Config()
        config.set_main_option("script_location", str(_SCRIPTS))
        with writing(database) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _revision(database: Database) -> str | None:
    with reading(database) as connection:
        return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _alone(database: Database, home: Path) -> Iterator[None]:
    """Hold the right to migrate; others wait. It is freed by the system if we die."""
    if database.is_postgresql:
        with reading(database) as connection:
            connection.execute(text(f"SELECT pg_advisory_lock({_POSTGRES_LOCK})"))
            try:
                yield
            finally:
                connection.execute(text(f"SELECT pg_advisory_unlock({_POSTGRES_LOCK})"))
        return
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".migrate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
