"""Disks and databases that no longer do their part: readiness says which and what to do, liveness stays as it is."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.api import readiness
from service.settings import Settings
from tests.service.api.server import Live, serving
from tests.service.api.test_problems import checked

PAGE = 4096


@pytest.fixture(autouse=True)
def _always_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(readiness, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(readiness, "_CHECK_PATIENCE", 60.0)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes small file systems; skips where this process may not."""
    made: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk{len(made)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("this process may not mount file systems")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def reasons(live: Live) -> list[str]:
    """What readiness says beside a missing dispatcher."""
    live.store.dispatchers.beat("one", host="here", pid=1, info={})
    return reasons_only(live)


def reasons_only(live: Live) -> list[str]:
    assert live.http.get("/livez").status_code == 200
    answer = live.http.get("/readyz")
    if answer.status_code == 200:
        return []
    return [str(reason) for reason in (checked(answer, 503).model_extra or {})["reasons"]]


def test_a_disk_without_inodes(mounted: Callable[..., Path]) -> None:
    home = mounted("size=50m,nr_inodes=2000")
    with serving(Settings(home=home / "home", min_free_bytes=0)) as live:
        assert reasons(live) == []
        for number in range(1_500):
            (home / str(number)).touch()
        (only,) = reasons(live)
        assert "inodes left" in only
        assert "delete" in only
        for number in range(1_500, 2_000):
            try:
                (home / str(number)).touch()
            except OSError:
                break
        (only,) = reasons(live)
        assert "0 inodes left" in only
        (home / "0").unlink()


def test_a_read_only_disk(mounted: Callable[..., Path], tmp_path: Path) -> None:
    home = mounted("size=50m")
    database = f"sqlite:///{tmp_path / 'service.db'}"  # elsewhere, as PostgreSQL is: a disk in use stays writable
    with serving(Settings(home=home / "home", database_url=database, min_free_bytes=0)) as live:
        assert reasons(live) == []
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
        found = reasons_only(live)
        assert any("the disk is read-only" in reason and "mount it writable" in reason for reason in found), found
        subprocess.run(["mount", "-o", "remount,rw", str(home)], check=True)
        assert reasons(live) == []


def test_a_disk_without_room_for_a_byte(mounted: Callable[..., Path]) -> None:
    home = mounted("size=2m")
    with serving(Settings(home=home / "home", min_free_bytes=0)) as live:
        assert reasons(live) == []
        with (home / "big").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(PAGE)):
                    pass
            except OSError:
                pass
        assert any("takes no files" in reason for reason in reasons_only(live))
        (home / "big").unlink()


def test_nothing_is_left_of_the_looks(tmp_path: Path) -> None:
    with serving(Settings(home=tmp_path, min_free_bytes=0)) as live:
        assert reasons(live) == []
        assert list(tmp_path.glob(".ready-*")) == []


@pytest.mark.parametrize("what", ["a page", "the first page", "cut short"])
def test_a_damaged_database(tmp_path: Path, what: str) -> None:
    settings = Settings(home=tmp_path, min_free_bytes=0)
    with serving(settings) as live:
        assert reasons(live) == []
        file = tmp_path / "service.db"
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if what == "cut short":
            os.truncate(file, 2 * PAGE)
        else:
            with file.open("r+b") as pages:
                for number in [0] if what == "the first page" else range(2, file.stat().st_size // PAGE):
                    pages.seek(number * PAGE)
                    pages.write(b"\xff" * PAGE)
        found = reasons_only(live)
        assert any("the database is damaged" in reason and "restore the newest backup" in reason for reason in found)


def test_requests_to_a_damaged_database_are_answered_with_what_to_do(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, min_free_bytes=0)
    with serving(settings) as live:
        live.submit()
        with sqlite3.connect(tmp_path / "service.db") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        live.store.database.close()  # connections with pages in memory; new ones are made
        with (tmp_path / "service.db").open("r+b") as pages:
            pages.seek(PAGE)
            pages.write(b"\xff" * (tmp_path / "service.db").stat().st_size)
        problem = checked(live.http.get("/v1/jobs"), 503)
        assert "restore a backup" in problem.detail
        assert live.http.get("/livez").status_code == 200
