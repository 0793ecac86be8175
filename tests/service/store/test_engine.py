"""Connections to SQLite whose file another process has in hand."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from service.store import engine
from service.store.engine import connect, reading
from service.store.errors import Unavailable


@pytest.fixture
def held(tmp_path):
    """A new file, not in WAL mode yet, whose write lock another connection holds."""
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


def test_connection_waits_for_another_that_still_has_the_new_file_in_hand(tmp_path, held):
    """SQLite itself refuses at once to make it a WAL file: its busy timeout does not hold for that."""
    database = connect(f"sqlite:///{tmp_path}/a.db")
    release = threading.Timer(0.5, held.execute, ["COMMIT"])
    release.start()
    with reading(database) as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    release.join()
    database.close()


def test_connection_gives_up_when_its_time_is_over(tmp_path, held, monkeypatch):
    monkeypatch.setattr(engine, "_BUSY_SECONDS", 0.2)
    database = connect(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(Unavailable, match="locked"), reading(database):
        pass
    database.close()


def test_what_is_no_database_is_said_at_once(tmp_path):
    (tmp_path / "a.db").write_bytes(b"x" * 4096)
    database = connect(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(Exception, match="not a database"), reading(database):
        pass
    database.close()
