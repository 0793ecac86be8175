"""The truth about jobs, events, data sets, embeddings and keys, in SQLite or PostgreSQL (design section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from service.private_home import close_home
from service.settings import Settings
from service.store.aliases import Aliases
from service.store.claims import Claims
from service.store.datasets import Datasets
from service.store.dispatchers import Dispatchers
from service.store.embeddings import Embeddings
from service.store.engine import Database, connect
from service.store.events import Events
from service.store.jobs import Jobs
from service.store.keys import Keys
from service.store.migrate import migrate

__all__ = ["Store", "open_store"]


@dataclass(frozen=True)
class Store:
    """One database, seen from each side that uses it. Synchronous; safe to use from several threads."""

    database: Database
    jobs: Jobs  # what clients do
    claims: Claims  # what dispatchers do
    events: Events
    datasets: Datasets
    keys: Keys
    dispatchers: Dispatchers
    embeddings: Embeddings
    aliases: Aliases

    @property
    def reads_inline(self) -> bool:
        """Whether reading never waits (SQLite in WAL mode), so that an event loop may do it itself."""
        return not self.database.is_postgresql

    def close(self) -> None:
        self.database.close()


def open_store(settings: Settings) -> Store:
    """Connect, and bring the tables up to date; the home is nobody else's from then on.

    Raises:
        Unavailable: the database does not answer.
        OSError: there is no home, and it cannot be made.
    """
    close_home(settings.home)
    database = connect(settings.database)
    try:
        migrate(database, settings.home)
    except BaseException:
        database.close()
        raise
    return Store(
        database, Jobs(database), Claims(database), Events(database), Datasets(database), Keys(database),
        Dispatchers(database), Embeddings(database), Aliases(database),
    )  # fmt: skip
