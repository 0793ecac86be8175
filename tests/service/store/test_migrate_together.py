"""Replicas that start together on an empty database: each comes up, one migrates, also if one is killed over it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from service.settings import Settings
from service.store.engine import connect, reading, writing
from service.store.tables import metadata
from tests import postgres

ROOT = Path(__file__).resolve().parents[3]
PROCESSES = 8
MIGRATED = "migrated the database from revision none to"

# Processes of their own that share no connection; forked, because importing everything takes a second each time.
# All are ready to go before any of them goes.
REPLICAS = """
import logging, os, pathlib, sys, time, traceback
from service.settings import Settings
from service.store import open_store
logging.basicConfig(level=logging.INFO)
logging.getLogger("alembic").setLevel(logging.WARNING)
settings, gate = Settings(), pathlib.Path(sys.argv[2])
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        try:
            os.write(1, b"ready\\n")
            while not gate.exists():
                time.sleep(0.001)
            store = open_store(settings)
            os.write(1, b"up, %d jobs\\n" % len(store.jobs.list(kind="train")[0]))
            store.close()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
for _ in range(int(sys.argv[1])):
    if os.wait()[1]:
        sys.exit("a replica did not come up")
"""
# Stops in the middle: the first tables are made, nothing is committed.
HOLDER = """
import sys, time
from alembic import command
from service.settings import Settings
from service.store import open_store
upgrade = command.upgrade
def half(config, _):
    upgrade(config, "0001")
    print("half way", flush=True)
    time.sleep(float(sys.argv[1]))
    upgrade(config, "head")
command.upgrade = half
open_store(Settings()).close()
print("up", flush=True)
"""


@contextlib.contextmanager
def started(settings: Settings, script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a script; with all that it started it is gone in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, text=True, start_new_session=True,
        env={**os.environ, **settings.environment(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def migrated(replicas: subprocess.Popen[str], count: int) -> int:
    """How many of the replicas migrated, once each of them has come up."""
    said, log = replicas.communicate(timeout=90)
    assert (replicas.returncode, said) == (0, "up, 0 jobs\n" * count), log
    return log.count(MIGRATED)


def check_tables(settings: Settings) -> None:
    database = connect(settings.database)
    with reading(database) as connection:
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar() == 1
        assert set(inspect(connection).get_table_names()) == {*metadata.tables, "alembic_version"}
    database.close()


def test_replicas_that_start_together_all_come_up_and_one_migrates(settings, tmp_path):
    gate = tmp_path / "gate"
    with started(settings, REPLICAS, PROCESSES, gate) as replicas:
        assert lines(replicas, PROCESSES) == ["ready"] * PROCESSES
        gate.touch()
        assert migrated(replicas, PROCESSES) == 1
    check_tables(settings)


def test_a_replica_killed_over_its_migration_leaves_nothing_and_another_migrates(settings, tmp_path):
    gate = tmp_path / "gate"
    with started(settings, HOLDER, 600) as holder, started(settings, REPLICAS, PROCESSES, gate) as replicas:
        assert lines(holder, 1) == ["half way"]
        assert lines(replicas, PROCESSES) == ["ready"] * PROCESSES
        gate.touch()
        time.sleep(1.0)
        assert replicas.poll() is None
        assert replicas.stdout is not None
        assert not select.select([replicas.stdout], [], [], 0)[0], "none may go ahead while another migrates"
        holder.kill()
        assert migrated(replicas, PROCESSES) == 1
    check_tables(settings)


@pytest.mark.slow
@pytest.mark.skipif(postgres.MISSING, reason=postgres.MISSING_REASON)
def test_replicas_wait_for_a_migration_that_takes_longer_than_any_request_may(server, tmp_path):
    """Connections give up a lock after 10 s, a statement after 15 s; a large table takes longer than that."""
    settings = Settings(home=tmp_path, database_url=server().new_database("long_migration"))
    gate = tmp_path / "gate"
    gate.touch()
    with started(settings, HOLDER, 20) as holder:
        assert lines(holder, 1) == ["half way"]
        with started(settings, REPLICAS, 2, gate) as replicas:
            assert lines(replicas, 2) == ["ready"] * 2
            assert migrated(replicas, 2) == 0
        assert holder.communicate(timeout=60)[0] == "up\n"
    check_tables(settings)


@pytest.mark.parametrize("module", ["service.dispatch", "service.serve_api"])
def test_an_older_version_names_the_newer_revision_it_met_and_changes_nothing(settings, module):
    settings = settings.model_copy(update={"port": 0})
    database = connect(settings.database)
    with writing(database) as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('9999')"))
    ended = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, env={**os.environ, **settings.environment()}, text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode != 0
    assert "the database has revision 9999, which this version does not know. Run the version" in ended.stderr
    if module == "service.dispatch":
        assert "Traceback" not in ended.stderr
    with reading(database) as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    database.close()
