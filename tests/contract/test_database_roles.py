"""docker/postgres/init.sh on a real PostgreSQL: each role has its own database and password, and only these."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.contract.database import AWKWARD, ask_for_passwords, run_init
from tests.postgres import MISSING, MISSING_REASON, PostgreSQL, running

pytestmark = pytest.mark.skipif(MISSING, reason=MISSING_REASON)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with running() as found:
        done = run_init(found, nml=AWKWARD, mlflow="other")
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        ask_for_passwords(found)
        yield found


def connect(server: PostgreSQL, role: str, password: str, database: str) -> psycopg.Connection:
    return psycopg.connect(
        host="127.0.0.1", port=server.port, user=role, password=password, dbname=database, autocommit=True
    )


@pytest.mark.parametrize("role, password", [("nml", AWKWARD), ("mlflow", "other")])
def test_role_may_make_tables_in_its_own_database(server, role, password):
    with connect(server, role, password, role) as connection:
        connection.execute("CREATE TABLE there (x int)")
        connection.execute("DROP TABLE there")
        rights = "SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication FROM pg_roles WHERE rolname = %s"
        assert connection.execute(rights, [role]).fetchone() == (False,)


@pytest.mark.parametrize("role, database", [
    ("nml", "mlflow"), ("nml", "postgres"), ("nml", "template1"),
    ("mlflow", "nml"), ("mlflow", "postgres"), ("mlflow", "template1"),
])  # fmt: skip
def test_role_cannot_connect_to_any_other_database(server, role, database):
    password = {"nml": AWKWARD, "mlflow": "other"}[role]
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        connect(server, role, password, database)


def test_a_wrong_password_is_refused(server):
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(server, "nml", "other", "nml")


def test_running_it_again_keeps_what_is_there_and_sets_new_passwords(server):
    with connect(server, "nml", AWKWARD, "nml") as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS x")
    try:
        done = run_init(server, nml="turned", mlflow="other")
        assert (done.returncode, done.stderr) == (0, "")
        with connect(server, "nml", "turned", "nml") as connection:
            assert connection.execute("SELECT x FROM kept").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            connect(server, "nml", AWKWARD, "nml")
    finally:
        run_init(server, nml=AWKWARD, mlflow="other")


def test_no_password_is_in_the_log(server):
    log = (server.folder / "log.txt").read_text()
    assert log
    assert AWKWARD.replace("'", "''") not in log
    assert "PASSWORD" not in log


def test_without_a_password_nothing_is_made(server):
    done = run_init(server, nml="", mlflow="other")
    assert done.returncode != 0
    assert "NML_DATABASE_PASSWORD" in done.stderr
