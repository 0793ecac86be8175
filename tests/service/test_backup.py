"""docker/backup.sh and docker/restore.sh on a real PostgreSQL: all that was there is there again, or nothing is.

tests/faults/test_restore.py does the same with the whole service at work.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from service.embeddings.layout import read_info
from service.embeddings.table import Table
from service.settings import Settings
from service.store import Store, open_store
from service.store.records import NewJob
from tests import postgres
from tests.service.clusters import MISSING, MISSING_REASON, ROOT, Place, server_with_roles
from tests.service.embeddings.tables import make_table
from tests.service.store.published import trained

TABLES = ("jobs", "events", "datasets", "embeddings", "aliases", "alias_moves", "keys", "idempotency")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING, reason=MISSING_REASON)]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[postgres.PostgreSQL, dict[str, str]]]:
    with server_with_roles() as started:
        yield started


@pytest.fixture
def place(server: tuple[postgres.PostgreSQL, dict[str, str]], tmp_path: Path) -> Place:
    """Empty."""
    made = Place(server[0], tmp_path, server[1])
    made.backups.mkdir()
    made.wipe()
    return made


def fill(place: Place) -> str:
    """A published version with an alias, a data set, a key, runs in MLflow; returns the version."""
    store = open_store(place.settings)
    job = trained(store, "papers.0123456789ab")
    table = make_table(place.home, 200, 16, "str", labels=3, version=job.id)
    embedding = store.embeddings.get(job.id)
    about = {"rows": table.info.rows, "dim": table.info.dim, "id_type": "str"}
    store.embeddings.finish(job.id, embedding.job_id, about=about)
    store.aliases.move("production", job.id, owner=None)
    check = NewJob("import", {"upload": "0" * 32}, "hash", "papers.0123456789ab")
    dataset, _ = store.datasets.create("papers", "0123456789ab", options={}, size=10, job=check)
    store.datasets.finish(dataset.ref, dataset.job_id, about={"nodes": 200})
    (place.home / "graphs" / dataset.ref).mkdir(parents=True)
    (place.home / "graphs" / dataset.ref / "edges.npy").write_bytes(os.urandom(1_000))
    (place.home / "uploads" / ("0" * 32)).mkdir(parents=True, mode=0o700)
    (place.home / "uploads" / ("0" * 32) / "nodes.csv").write_text("id\n1\n")
    store.keys.create("laptop", {"submit"})
    store.close()
    # MLflow's own tables are not what is tried here.
    with psycopg.connect(place.url("mlflow")) as connection:
        for table_name in ("runs", "users"):
            connection.execute(f"CREATE TABLE {table_name} (id int PRIMARY KEY, name text)")
            connection.execute(f"ALTER TABLE {table_name} OWNER TO mlflow")
            connection.execute(f"INSERT INTO {table_name} SELECT n, 'a\nb' || n FROM generate_series(1, 50) AS n")
    (place.mlflow / "artifacts").mkdir()
    (place.mlflow / "artifacts" / "model.bin").write_bytes(os.urandom(5_000))
    return job.id


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and mode of each, by path."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".migrate.lock"
    }


def test_what_was_there_is_there_again(place):
    version = fill(place)
    files = files_of(place.home), files_of(place.mlflow)
    rows = {table: place.rows(table) for table in TABLES}
    others = place.rows("runs", "mlflow"), place.rows("users", "mlflow")
    assert rows["aliases"]
    assert rows["datasets"]
    name = place.backup()
    place.wipe()
    assert place.is_empty()
    ended = place.run("restore.sh", "latest")
    assert ended.returncode == 0, ended.stderr
    assert f"restored {name}" in ended.stderr
    assert (files_of(place.home), files_of(place.mlflow)) == files
    assert {table: place.rows(table) for table in TABLES} == rows
    assert (place.rows("runs", "mlflow"), place.rows("users", "mlflow")) == others
    # The largest file is still one file under two names.
    run, published = place.settings.run_directory(version), place.settings.version_directory(version)
    assert os.path.samefile(run / "embeddings" / "vectors.npy", published / "vectors.npy")
    store = open_store(place.settings)  # the role owns what came back: it can go on writing
    assert store.aliases.get("production").version == version
    assert store.embeddings.snapshot().aliases["latest"] == version
    assert len(Table.open(published).vectors) == read_info(published).rows == 200
    trained(store)
    store.close()


def test_a_backup_of_a_service_at_work_is_whole(place):
    """Rows are added, files grow, are renamed and vanish all the time; what was there before is in the backup."""
    fill(place)
    before = {table: place.rows(table) for table in TABLES}
    files = files_of(place.home)
    stop = threading.Event()
    writers = [threading.Thread(target=work, args=[place.settings, stop]) for work in (submit, rewrite)]
    for writer in writers:
        writer.start()
    busy = place.home / "runs" / "busy" / "checkpoints"
    try:
        until(lambda: len(place.rows("jobs")) > len(before["jobs"]) and busy.is_dir() and len(os.listdir(busy)) > 1)
        place.backup()
        backed_up = len(place.rows("jobs"))
        until(lambda: len(place.rows("jobs")) > backed_up)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    written = place.rows("jobs")
    place.wipe()
    ended = place.run("restore.sh", "latest")
    assert ended.returncode == 0, ended.stderr
    jobs = place.rows("jobs")
    assert len(before["jobs"]) < len(jobs) < len(written)
    assert jobs == written[: len(jobs)]  # ids sort by time: no gap
    for table in ("datasets", "embeddings", "aliases", "keys"):
        assert place.rows(table) == before[table]
    assert files.items() <= files_of(place.home).items()
    events = (place.home / "runs" / "busy" / "events.jsonl").read_text().splitlines()
    kept = sorted(path.name for path in (place.home / "runs" / "busy" / "checkpoints").iterdir())
    assert int(events[-1]) >= int(kept[-1]), "events may not be older than a checkpoint"
    assert not [path for path in place.home.rglob("*") if path.name.endswith((".tmp", ".deleted"))]


def submit(settings: Settings, stop: threading.Event) -> None:
    store: Store = open_store(settings)
    while not stop.is_set():
        store.jobs.submit(NewJob("train", {}, "hash", "digits"))
    store.close()


def rewrite(settings: Settings, stop: threading.Event) -> None:
    """As a trainer does, and faster: an event, then a checkpoint under a temporary name, renamed; the oldest goes.

    Every tenth stays: an archive that is stalled between listing and reading them would else find all of them gone.
    """
    run, number = settings.runs / "busy", 0
    (run / "checkpoints").mkdir(parents=True)
    while not stop.wait(0.02):
        number += 1
        with (run / "events.jsonl").open("a") as events:
            events.write(f"{number:09d}\n")
        temporary, target = run / "checkpoints" / f".{number}.tmp", run / "checkpoints" / f"{number:09d}"
        temporary.mkdir()
        (temporary / "state").write_bytes(os.urandom(50_000))
        temporary.rename(target)
        for old in sorted((run / "checkpoints").iterdir())[:-2]:
            if int(old.name) % 10 != 1:
                shutil.rmtree(old)
        going = settings.runs / f".{number}.deleted"
        going.mkdir()
        (going / "file").touch()
        shutil.rmtree(going)


@pytest.mark.parametrize("file", ["data.tar", "nml.dump", "manifest.txt"])
def test_a_damaged_backup_is_refused_before_anything_is_written(place, file):
    fill(place)
    name = place.backup()
    damaged = place.backups / name / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    place.wipe()
    ended = place.run("restore.sh", name)
    assert ended.returncode == 1
    assert "is damaged. Nothing was changed" in ended.stderr
    assert file in ended.stderr
    assert place.is_empty()


def test_a_backup_whose_sums_do_not_name_all_is_refused(place):
    fill(place)
    sums = place.backups / place.backup() / "SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if "data.tar" not in line))
    place.wipe()
    ended = place.run("restore.sh", "latest")
    assert (ended.returncode, place.is_empty()) == (1, True)
    assert "does not name data.tar" in ended.stderr


@pytest.mark.parametrize("used", ["database", "home", "mlflow"])
def test_a_place_that_is_used_is_left_alone(place, used):
    fill(place)
    place.backup()
    place.wipe()
    if used == "database":
        open_store(place.settings).close()
        (place.home / ".migrate.lock").unlink(missing_ok=True)
        tables = len(place.rows("pg_tables WHERE schemaname = 'public'"))
        told = f"database nml is not empty (it has {tables} tables)"
    else:
        folder = place.home if used == "home" else place.mlflow
        (folder / "mine.txt").write_text("precious")
        told = f"{folder} is not empty (it holds mine.txt)"
    ended = place.run("restore.sh", "latest")
    assert ended.returncode == 1
    assert f"{told}. Nothing was changed. Stop the service" in ended.stderr
    if used == "database":
        assert place.rows("jobs") == []
        assert not any(place.home.iterdir())
    else:
        assert (folder / "mine.txt").read_text() == "precious"
        assert [path.name for path in (*place.home.iterdir(), *place.mlflow.iterdir())] == ["mine.txt"]


@pytest.mark.parametrize("name", ["20200101T000000Z", "../backups", "", ".x.partial"])
def test_a_name_that_is_no_backup_is_refused(place, name):
    ended = place.run("restore.sh", name)
    assert ended.returncode == 1
    assert "no backup" in ended.stderr or "no name of a backup" in ended.stderr


@pytest.mark.parametrize("whole_group", [True, False])
def test_a_killed_backup_is_none_and_the_next_one_clears_it_away(place, whole_group, tmp_path):
    """Killed with the program that it waits for, or alone, so that the program still writes for a while."""
    fill(place)
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "tar"
    slow.write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/started.tmp\nmv {tmp_path}/started.tmp {tmp_path}/started\nsleep 600\n"
    )
    slow.chmod(0o755)
    environment = place.environment()
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    process = subprocess.Popen(
        [str(ROOT / "docker" / "backup.sh")], env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: (tmp_path / "started").exists())
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        assert [path.suffix for path in place.backups.iterdir() if path.is_dir()] == [".partial"]
        refused = place.run("restore.sh", "latest")
        assert refused.returncode == 1
        assert "there is no backup" in refused.stderr
        if not whole_group:
            busy = place.run("backup.sh")
            assert (busy.returncode, "another backup is at work" in busy.stderr) == (1, True)
            os.killpg(process.pid, signal.SIGKILL)  # the program ends at last
            until(lambda: place.run("backup.sh").returncode == 0)
        else:
            place.backup()
    finally:
        shutil.rmtree(tmp_path / "bin")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert [path.name for path in place.backups.iterdir() if path.is_dir()] == place.names()
    assert len(place.names()) == 1


@pytest.mark.parametrize("program", ["tar", "pg_restore"])
def test_a_killed_restore_is_named_half_done_and_can_be_begun_again_in_an_empty_place(place, program, tmp_path):
    fill(place)
    place.backup()
    place.wipe()
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / program
    slow.write_text(f"#!/bin/sh\necho >{tmp_path}/started\n[ {program} = tar ] && touch {place.home}/half\nsleep 600\n")
    slow.chmod(0o755)
    environment = place.environment()
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    process = subprocess.Popen(
        [str(ROOT / "docker" / "restore.sh"), "latest"], env=environment, start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: (tmp_path / "started").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    refused = place.run("restore.sh", "latest")
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr
    place.wipe()
    assert place.run("restore.sh", "latest").returncode == 0
    with contextlib.closing(open_store(place.settings)) as store:
        assert len(store.jobs.list(kind="train")[0]) == 1


def test_a_backup_that_finds_no_room_leaves_nothing(place):
    fill(place)
    (place.mlflow / "artifacts" / "large").write_bytes(bytes(2_000_000))

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    ended = place.run("backup.sh", preexec_fn=small_disk, restore_signals=False)
    assert ended.returncode == 1
    assert "No backup was made" in ended.stderr
    assert not [path for path in place.backups.iterdir() if path.is_dir()]


def test_a_wrong_password_makes_no_backup_and_no_password_is_on_a_command_line(place, tmp_path):
    fill(place)
    ended = place.run("backup.sh", environment={"MLFLOW_DATABASE_PASSWORD": "wrong"})
    assert ended.returncode != 0
    assert "password authentication failed" in ended.stderr
    assert not [path for path in place.backups.iterdir() if path.is_dir()]
    (tmp_path / "bin").mkdir()
    for program in ("pg_dump", "pg_restore", "psql", "tar"):
        real = shutil.which(program, path=place.environment()["PATH"])
        watched = tmp_path / "bin" / program
        watched.write_text(f'#!/bin/sh\necho "$0" "$@" >>{tmp_path}/commands\nexec {real} "$@"\n')
        watched.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{place.environment()['PATH']}"}
    place.backup(environment=environment)
    place.wipe()
    assert place.run("restore.sh", "latest", environment=environment).returncode == 0
    commands = (tmp_path / "commands").read_text()
    assert commands.count("pg_dump") == 2  # one for each database
    assert not [password for password in place.passwords.values() if password in commands]


def test_only_as_many_as_wanted_are_kept(place):
    fill(place)
    made = [place.backup("--keep", "2") for _ in range(3)]
    assert place.names() == made[1:]
    assert place.run("backup.sh", "--keep", "0").returncode == 1
    assert place.run("backup.sh", "--keep").returncode == 1
    assert place.names() == made[1:]


def until(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
