"""`make secrets`: every name of .env.example gets a value of its own, once, and nobody else may read it."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOUNTED = ("docker/postgres/init.sh", "docker/backup.sh", "docker/restore.sh")
NEEDED = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))


def make_secrets(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make secrets` in a copy of the project that has no .venv."""
    (folder / "docker" / "postgres").mkdir(parents=True, exist_ok=True)
    for name in ("docker/secrets.py", ".env.example", "Makefile", *MOUNTED):
        shutil.copy(ROOT / name, folder / name)
        (folder / name).chmod(0o700)  # as under a strict umask
    return subprocess.run(["make", "secrets"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def values(folder: Path) -> dict[str, str]:
    lines = (folder / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_make_secrets_gives_every_name_a_value_of_its_own(tmp_path):
    done = make_secrets(tmp_path)
    assert done.returncode == 0, done.stderr
    found = values(tmp_path)
    assert set(found) == NEEDED
    assert len(set(found.values())) == len(NEEDED)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32,}", value) for value in found.values())
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert not [value for value in found.values() if value in done.stdout + done.stderr]
    assert not list(tmp_path.glob(".env.*.tmp"))
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_make_secrets_keeps_what_is_there(tmp_path):
    before = "# mine\nexport RAY_AUTH_TOKEN='kept'\nNML_PORT=9000\nMLFLOW_PASSWORD=\n"
    (tmp_path / ".env").write_text(before)
    (tmp_path / ".env").chmod(0o644)
    assert make_secrets(tmp_path).returncode == 0
    first = (tmp_path / ".env").read_text()
    assert first.startswith("# mine\nexport RAY_AUTH_TOKEN='kept'\nNML_PORT=9000\nMLFLOW_PASSWORD=")
    assert len(values(tmp_path)["MLFLOW_PASSWORD"]) >= 32
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert make_secrets(tmp_path).returncode == 0
    assert (tmp_path / ".env").read_text() == first


def test_make_secrets_opens_what_containers_mount_to_the_users_in_there(tmp_path):
    volumes = re.findall(r"- \./(\S+?):", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert set(volumes) == set(MOUNTED)
    make_secrets(tmp_path)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in MOUNTED} == {0o755}


def test_two_at_once_agree_on_one_set(tmp_path):
    make_secrets(tmp_path)
    (tmp_path / ".env").unlink()
    script = [sys.executable, tmp_path / "docker" / "secrets.py"]
    said: list[str] = []
    runs = [
        threading.Thread(target=lambda: said.append(subprocess.run(script, capture_output=True, text=True).stdout))
        for _ in range(4)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted("nothing is missing" in line for line in said) == [False, True, True, True]
    assert set(values(tmp_path)) == NEEDED


def test_a_disk_without_room_costs_no_secret(tmp_path):
    make_secrets(tmp_path)
    before = (tmp_path / ".env").read_text()
    (tmp_path / ".env").write_text(before.replace("RAY_AUTH_TOKEN=", "NOT_ANY_MORE="))
    shortened = (tmp_path / ".env").read_text()
    command = "ulimit -f 0; exec python3 docker/secrets.py"  # no file may grow
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert (tmp_path / ".env").read_text() == shortened
