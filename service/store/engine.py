"""Connections: SQLite waits for its lock, PostgreSQL fails soon, and both raise Unavailable.

Writers of SQLite take its write lock when they begin (BEGIN IMMEDIATE). One that began as a reader and wrote later
would be refused at once if another had written meanwhile, instead of waiting.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.store.errors import DatabaseDamaged, NotWritable, Unavailable

_BUSY_SECONDS = 15  # SQLite: for other writers; each holds the lock for milliseconds
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_DAMAGE_STATES = ("XX001", "XX002")  # of PostgreSQL: data, an index
_NOT_WRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
_POSTGRES = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds; without it, a host that vanished is retried for minutes
    "options": "-c statement_timeout=15000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=30000",
}


@dataclass(frozen=True)
class Database:
    """Two engines on one database: one that writes in transactions, one that reads statement by statement."""

    writer: Engine
    reader: Engine

    @property
    def is_postgresql(self) -> bool:
        return self.writer.dialect.name == "postgresql"

    def close(self) -> None:
        self.writer.dispose()
        self.reader.dispose()


def connect(url: str) -> Database:
    """The database at `url`; nothing is connected yet."""
    if make_url(url).get_backend_name() == "sqlite":
        return _sqlite(url)
    settings: dict[str, Any] = {
        "pool_pre_ping": True,
        "pool_timeout": 10,
        "connect_args": _POSTGRES,
        "max_overflow": 20,
    }
    writer = create_engine(url, pool_size=5, **settings)
    return Database(writer, create_engine(url, pool_size=5, isolation_level="AUTOCOMMIT", **settings))


@contextmanager
def reading(database: Database) -> Iterator[Connection]:
    """A connection for reading; each statement sees what is committed when it begins.

    Raises:
        Unavailable: the database does not answer.
    """
    with _translated(), database.reader.connect() as connection:
        yield connection


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """A connection for reading whose statements all see the same moment.

    Raises:
        Unavailable: the database does not answer.
    """
    with _translated(), database.reader.connect() as connection:
        if database.is_postgresql:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")  # until it is given back
            with connection.begin():
                yield connection
            return
        connection.exec_driver_sql("BEGIN")
        try:
            yield connection
        finally:
            connection.exec_driver_sql("ROLLBACK")


def read_row(database: Database, statement: str, value: str) -> tuple[Any, ...] | None:
    """One row by one value, straight from the driver: four times faster than `reading`, for the most frequent query.

    Raises:
        Unavailable: the database does not answer.
    """
    errors = database.reader.dialect.loaded_dbapi
    connection = None
    try:
        connection = database.reader.raw_connection()
        row: tuple[Any, ...] | None = connection.driver_connection.execute(statement, (value,)).fetchone()  # type: ignore[union-attr]
    except (errors.DatabaseError, errors.InterfaceError, PoolTimeout, DBAPIError) as error:
        if connection is not None:
            connection.invalidate()
        raise _unavailable(error) from error
    finally:
        if connection is not None:
            connection.close()
    return row


def check_file(database: Database) -> None:
    """Look through the whole file of SQLite; a gigabyte takes seconds. PostgreSQL checks every page that it reads.

    By a connection of its own: others keep pages in memory, and would not notice what has become of the file.

    Raises:
        DatabaseDamaged: it is not as SQLite wrote it.
        Unavailable: it cannot be read.
    """
    place = database.reader.url.database
    if database.is_postgresql or not place:
        return
    address = f"{Path(place).absolute().as_uri()}?mode=rw"  # rw: to read a WAL file, too; nothing is made or changed
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        raise _unavailable(error) from error
    if found != "ok":
        raise DatabaseDamaged(found.replace("\n", " "))


@contextmanager
def writing(database: Database) -> Iterator[Connection]:
    """A transaction that is committed at the end of the block, or rolled back if that raises.

    Raises:
        Unavailable: the database does not answer. If it failed during the commit, the changes may or may not be
            stored: check before writing them again.
    """
    with _translated(), database.writer.begin() as connection:
        yield connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (
        OperationalError,
        InterfaceError,
        InternalError,
        PoolTimeout,
    ) as error:  # InternalError: read-only at the moment
        raise _unavailable(error) from error
    except (DBAPIError, sqlite3.DatabaseError) as error:  # the latter while a connection is prepared
        found = _unavailable(error)
        if isinstance(found, DatabaseDamaged) or (isinstance(error, DBAPIError) and error.connection_invalidated):
            raise found from error
        raise


def _unavailable(error: Exception) -> Unavailable:
    cause = getattr(error, "orig", None) or error
    code, state = getattr(cause, "sqlite_errorcode", 0) & 0xFF, getattr(cause, "sqlstate", None)
    if code in _DAMAGE or state in _DAMAGE_STATES:
        return DatabaseDamaged(_first_line(error))
    return (NotWritable if code in _NOT_WRITABLE else Unavailable)(_first_line(error))


def _first_line(error: Exception) -> str:
    """The driver's message; SQLAlchemy's own would add the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def _sqlite(url: str) -> Database:
    file = make_url(url).database
    if file:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"connect_args": {"timeout": _BUSY_SECONDS}, "pool_size": 20, "max_overflow": 40}
    writer = create_engine(url, **settings)
    # A reader has no transaction to end before its connection is used again.
    reader = create_engine(url, isolation_level="AUTOCOMMIT", pool_reset_on_return=None, **settings)
    event.listen(writer, "connect", _prepare)
    event.listen(reader, "connect", _prepare)
    event.listen(writer, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return Database(writer, reader)


def _prepare(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # the driver begins no transaction by itself
    _use_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):  # FULL: a 202 survives a power cut
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """The first connection turns a new file into a WAL file; SQLite refuses others meanwhile, so they wait here."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
