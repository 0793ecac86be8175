"""Another user of the machine, who looks into NML_HOME: it is closed, and so is every file that the service makes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import httpx
import pytest

from service.private_home import close_home
from service.settings import Settings
from service.store import open_store
from tests.faults.services import Service, wait_for
from tests.service.datasets.forms import EDGES, NODES

TINY = {
    "encoder": {"hidden": 8, "dim": 4}, "method": {"metric": {"hidden": 8}}, "optimiser": {"epochs": 1},
    "evaluation": {"figures": False},
}  # fmt: skip


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_that_the_service_makes_can_be_read_by_others(tmp_path: Path, usual_umask: None) -> None:
    service = Service(tmp_path / "home")
    service.start()
    try:
        service.wait_until_ready()
        with httpx.Client(base_url=service.url, timeout=120) as http:
            files = {"nodes": ("n.csv", NODES), "edges": ("e.csv", EDGES)}
            pushed = http.post("/v1/datasets", data={"name": "papers"}, files=files)
            assert pushed.status_code == 201, pushed.text
            document = {**TINY, "data": {"name": "imported", "imported": pushed.json()["ref"]}}
            job = http.post("/v1/jobs", json=document).json()["id"]

            def published() -> bool:
                found = http.get(f"/v1/embeddings/{job}")
                return found.status_code == 200 and found.json()["state"] == "ready"

            wait_for(published, 120, service.last_words)
            assert http.get(f"/v1/embeddings/{job}/download?format=parquet").status_code == 200
        home = service.settings.home
        made = [path for path in (home, *home.rglob("*")) if path != service.log and not path.is_symlink()]
        assert {part for path in made for part in path.relative_to(home).parts[:1]} >= {
            "embeddings", "graphs", "jobs", "runs", "service.db", "uploads",
        }  # fmt: skip
        assert [f"{path} {mode(path):o}" for path in made if mode(path) & 0o077] == []
    finally:
        service.stop()


def test_a_home_that_an_earlier_release_left_open_is_closed(tmp_path: Path, usual_umask: None) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    open_store(Settings(home=home)).close()
    assert mode(home) == 0o700


@pytest.mark.parametrize("before, after", [(0o755, 0o700), (0o2770, 0o2700), (0o1777, 0o1777), (0o500, 0o500)])
def test_only_the_rights_of_others_are_taken_and_what_is_everybody_s_stays_so(
    tmp_path: Path, before: int, after: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(before)
    close_home(home)
    assert mode(home) == after


def test_a_folder_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o775)
    monkeypatch.setattr(os, "geteuid", lambda: 1 + home.stat().st_uid)
    close_home(home)
    assert mode(home) == 0o775


def test_a_new_home_is_made_closed(tmp_path: Path, usual_umask: None) -> None:
    close_home(tmp_path / "a" / "home")
    assert mode(tmp_path / "a" / "home") == 0o700
