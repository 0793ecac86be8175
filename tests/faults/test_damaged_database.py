"""SQLite's file or its log is damaged: said once and clearly, never a restart without end, never wrong rows."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from service.store import open_store
from service.store.engine import check_file, writing
from service.store.errors import DatabaseDamaged
from service.store.jobs import insert_job
from service.store.records import NewJob
from tests.service.api.server import serving
from trainer.errors import Infrastructure

ROOT = Path(__file__).resolve().parents[2]
ROWS = 300
PAGE = 4_096


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", port=0, min_free_bytes=0)


def fill(settings: Settings) -> list[str]:
    """Jobs in a file without a log; their ids."""
    with closing(open_store(settings)) as store, writing(store.database) as connection:
        return [insert_job(connection, job(str(number))).id for number in range(ROWS)]


def job(name: str) -> NewJob:
    return NewJob("train", {"text": name * 100}, spec_hash="x", dataset="digits", name=name)


def file_of(settings: Settings) -> Path:
    return settings.home / "service.db"


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGE = {
    "zeroed header": lambda path: overwrite(path, 0, bytes(PAGE)),
    "garbage for a header": lambda path: overwrite(path, 0, os.urandom(PAGE)),
    "garbage for the tables": lambda path: overwrite(path, 2 * PAGE, os.urandom(20 * PAGE)),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["zeroed header", "garbage for the tables"])
def test_a_service_with_a_damaged_database_ends_with_one_sentence(settings, damage):
    fill(settings)
    DAMAGE[damage](file_of(settings))
    before = file_of(settings).read_bytes()
    ended = subprocess.run(
        [sys.executable, "-m", "service.cli", "serve"], cwd=ROOT, env=os.environ | settings.environment(), text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == Infrastructure.exit_code, ended.stderr
    assert f"the database in {settings.home} is damaged" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert file_of(settings).read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_call_of_a_damaged_database_is_unavailable_or_right(settings, damage):
    ids = fill(settings)
    DAMAGE[damage](file_of(settings))
    with pytest.raises(DatabaseDamaged):
        read_everything(settings, ids)


def read_everything(settings: Settings, ids: list[str]) -> None:
    with closing(open_store(settings)) as store:
        for job_id in ids:
            found = store.jobs.get(job_id)
            assert found is None or found.id == job_id
        store.jobs.list(kind="train", limit=ROWS)
        check_file(store.database)


def test_the_api_of_a_database_that_is_damaged_under_it_answers_503_and_says_why(settings):
    fill(settings)
    with serving(settings) as live:
        overwrite(file_of(settings), PAGE, os.urandom(file_of(settings).stat().st_size - PAGE))
        live.store.database.reader.dispose()  # connections keep pages that they have read
        live.store.database.writer.dispose()
        answer = live.http.get("/v1/jobs")
        assert answer.status_code == 503, answer.text
        assert "damaged" in answer.json()["detail"]
        ready = live.http.get("/readyz")
        assert ready.status_code == 503
        assert any("damaged" in reason for reason in ready.json()["reasons"])
        assert live.http.get("/livez").status_code == 200
        with httpx.Client(base_url=live.url) as other:
            assert other.post("/v1/jobs", json={"data": {"name": "digits"}}).status_code == 503


WRITER = """
import os, sys
from service.settings import Settings
from service.store import open_store
from service.store.records import NewJob
store = open_store(Settings())
keep = store.database.reader.connect()  # so that the log is not brought over
for number in range(40):
    store.jobs.submit(NewJob("train", {}, spec_hash="x", dataset="digits", name=str(number)))
print("done", flush=True)
os.kill(os.getpid(), 9)
"""


def killed_writer(settings: Settings) -> Path:
    """Forty jobs of a process that was killed, all of them in the log."""
    ended = subprocess.run(
        [sys.executable, "-c", WRITER], cwd=ROOT, env=os.environ | settings.environment(), capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert ended.stdout == b"done\n", ended.stderr
    log = file_of(settings).with_name("service.db-wal")
    assert log.stat().st_size > 40 * PAGE
    return log


LOG_DAMAGE = {
    "nothing": lambda path: None,
    "torn end": lambda path: os.truncate(path, path.stat().st_size - PAGE // 2),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "garbage in the middle": lambda path: overwrite(path, path.stat().st_size // 2, os.urandom(3 * PAGE)),
    "zeroed end": lambda path: overwrite(path, path.stat().st_size - 10 * PAGE, bytes(10 * PAGE)),
}


@pytest.mark.parametrize("damage", LOG_DAMAGE)
def test_of_a_damaged_log_the_transactions_before_the_damage_are_kept_whole(settings, damage):
    with closing(open_store(settings)):
        pass
    LOG_DAMAGE[damage](killed_writer(settings))
    with closing(open_store(settings)) as store:
        check_file(store.database)
        jobs = store.jobs.list(kind="train", limit=100)[0][::-1]
        names = [found.name for found in jobs]
        assert names == [str(number) for number in range(len(names))]
        assert len(names) == 40 if damage == "nothing" else len(names) < 40
        for found in jobs:
            (event,) = store.events.after(found.id, 0)
            assert event.data["state"] == "queued"
        store.jobs.submit(job("later"))


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_said_once(settings):
    settings.home.parent.mkdir(exist_ok=True)
    settings.home.write_text("a file where the folder should be")
    ended = subprocess.run(
        [sys.executable, "-m", "service.cli", "serve"], cwd=ROOT, env=os.environ | settings.environment(), text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == Infrastructure.exit_code
    assert "cannot write to the home" in ended.stderr
    assert "Traceback" not in ended.stderr
