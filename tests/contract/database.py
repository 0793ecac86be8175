"""The databases of docker-compose.yml on a real PostgreSQL: made by docker/postgres/init.sh, passwords asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg

from tests.postgres import PROGRAMS, PostgreSQL

ROOT = Path(__file__).parents[2]
AWKWARD = "it's \"a\" $HOME `id` \\ :'x' %s 100%"  # what quoting must survive


def ask_for_passwords(server: PostgreSQL) -> None:
    """As the image does it for connections by TCP; the superuser alone still comes in without one."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        (user,) = connection.execute("SELECT current_user").fetchone()
        rules = f"host all {user} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (server.folder / "data" / "pg_hba.conf").write_text(rules)
        connection.execute("SELECT pg_reload_conf()")


def run_init(server: PostgreSQL, *, nml: str, mlflow: str) -> subprocess.CompletedProcess[str]:
    """docker/postgres/init.sh, as the image of PostgreSQL would run it."""
    with psycopg.connect(server.url()) as connection:
        (user,) = connection.execute("SELECT current_user").fetchone()
    environment = {
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", "PGHOST": "127.0.0.1", "PGPORT": str(server.port),
        "POSTGRES_USER": user, "NML_DATABASE_PASSWORD": nml, "MLFLOW_DATABASE_PASSWORD": mlflow,
    }  # fmt: skip
    script = ROOT / "docker" / "postgres" / "init.sh"
    return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=60, check=False)
