"""A cluster's databases and folders, with docker/backup.sh and docker/restore.sh to run on them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from service.settings import Settings
from tests import postgres

ROOT = Path(__file__).resolve().parents[2]
_NEEDED = ("bash", "tar", "sha256sum", "flock", "find", "sed")
_LACKING = [name for name in _NEEDED if shutil.which(name) is None]
MISSING = postgres.MISSING or bool(_LACKING)
MISSING_REASON = postgres.MISSING_REASON if postgres.MISSING else f"not on this machine: {', '.join(_LACKING)}"


@dataclass
class Place:
    """A cluster's databases and folders, and where its backups lie."""

    server: postgres.PostgreSQL
    folder: Path
    passwords: dict[str, str]

    @property
    def home(self) -> Path:
        return self.folder / "data"

    @property
    def mlflow(self) -> Path:
        return self.folder / "mlflow"

    @property
    def backups(self) -> Path:
        return self.folder / "backups"

    @property
    def settings(self) -> Settings:
        url = f"postgresql://nml:{self.passwords['nml']}@127.0.0.1:{self.server.port}/nml"
        return Settings(home=self.home, database_url=url)

    def url(self, database: str) -> str:
        """As the administrator."""
        return self.server.url(database)

    def environment(self) -> dict[str, str]:
        assert postgres.PROGRAMS is not None
        return {
            "PATH": f"{postgres.PROGRAMS}:{os.environ['PATH']}", "PGHOST": "127.0.0.1", "LANG": "C.UTF-8",
            "PGPORT": str(self.server.port), "NML_DATABASE_PASSWORD": self.passwords["nml"],
            "MLFLOW_DATABASE_PASSWORD": self.passwords["mlflow"], "NML_HOME": str(self.home),
            "MLFLOW_FILES": str(self.mlflow), "BACKUPS": str(self.backups),
        }  # fmt: skip

    def run(self, script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = self.environment() | options.pop("environment", {})
        command = [str(ROOT / "docker" / script), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **options)

    def backup(self, *arguments: str, **options: Any) -> str:
        """Make one, and return its name."""
        ended = self.run("backup.sh", *arguments, **options)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def names(self) -> list[str]:
        return self.run("restore.sh", "--list").stdout.split()

    def make_databases(self, *names: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            for name in names:
                connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
                connection.execute(f'CREATE DATABASE "{name}" OWNER "{name}"')

    def wipe(self) -> None:
        """All that the service keeps; not the backups."""
        for folder in (self.home, self.mlflow):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self.make_databases("nml", "mlflow")

    def rows(self, table: str, database: str = "nml") -> list[dict[str, Any]]:
        with psycopg.connect(self.url(database), row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()

    def is_empty(self) -> bool:
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        counts = []
        for database in ("nml", "mlflow"):
            with psycopg.connect(self.url(database)) as connection:
                counts += connection.execute(query).fetchone() or ()
        return counts == [0, 0] and not any(self.home.iterdir()) and not any(self.mlflow.iterdir())


@contextmanager
def server_with_roles() -> Iterator[tuple[postgres.PostgreSQL, dict[str, str]]]:
    """PostgreSQL with the two roles, who must show their passwords; and these."""
    with postgres.running() as started:
        passwords = {role: secrets.token_urlsafe(16) for role in ("nml", "mlflow")}
        with psycopg.connect(started.url(), autocommit=True) as connection:
            for role, password in passwords.items():
                connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
            rules = started.folder / "data" / "pg_hba.conf"
            rules.write_text("host all nml,mlflow 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
            connection.execute("SELECT pg_reload_conf()")
        yield started, passwords
