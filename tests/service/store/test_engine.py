"""Connections to SQLite whose file another process has in hand."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from sqlalchemy import event

from service.settings import Settings
from service.store import engine
from service.store.engine import connect, reading
from service.store.errors import Unavailable
from tests.service.api.server import SMALL, serving


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


@pytest.mark.parametrize(
    "pragma, words", [("query_only=ON", "readonly"), ("max_page_count=1", "full")], ids=["read-only", "full"]
)
def test_a_database_that_cannot_be_written_for_a_while_says_so_reads_on_and_recovers(tmp_path, pragma, words):
    """As the driver reports a file system that became read-only, or full, under an open database."""
    settings = Settings(home=tmp_path / "home", min_free_bytes=0, memory_limit="4GB")
    with serving(settings) as live:
        job = live.submit()["id"]
        writer = live.store.database.writer

        def limit(connection, record) -> None:
            connection.execute(f"PRAGMA {pragma}")

        writer.dispose()
        event.listen(writer, "connect", limit)
        large = (
            live.http.post("/v1/jobs", json=SMALL, params={"name": "x" * 200}) if words == "readonly" else fill(live)
        )
        assert large.status_code == 503, large.text
        assert words in large.json()["detail"]
        assert live.http.get(f"/v1/jobs/{job}").status_code == 200
        event.remove(writer, "connect", limit)
        writer.dispose()
        assert live.submit()["id"] != job


def fill(live):
    """Jobs, until one is refused."""
    for _ in range(200):
        answer = live.http.post("/v1/jobs", json=SMALL)
        if answer.status_code != 202:
            return answer
    raise AssertionError("the database never became full")
