"""The MLflow server of docker-compose.yml, its very command and settings, on a real PostgreSQL.

It asks for a password, keeps runs and artifacts over a restart, and says nothing of its own passwords.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cluster.runtime.compose_file import needed_variables, read_compose
from tests.contract.database import ask_for_passwords, run_init
from tests.postgres import MISSING, MISSING_REASON, PostgreSQL, running
from tests.trainer.tracking.mlflow_server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(MISSING, reason=MISSING_REASON)]
SEARCH = "/api/2.0/mlflow/experiments/search?max_results=10"
CLIENT = """
import sys, mlflow
experiment = mlflow.set_experiment("papers")
if sys.argv[1] == "log":
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 0.25)
        mlflow.log_text("thirteen words", "notes/words.txt")
(run,) = mlflow.search_runs(["0", experiment.experiment_id], output_format="list")
print(run.data.metrics["loss"], mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/notes/words.txt"))
"""


class Container:
    """The service `mlflow` of compose in a process: other paths, another port, nothing else changed."""

    def __init__(self, root: Path, folder: Path, server: PostgreSQL) -> None:
        compose = root / "docker-compose.yml"
        self.secrets = {name: f"{name.lower()}-0123456789" for name in needed_variables(compose)}
        service = read_compose(compose, self.secrets)["mlflow"]
        self.port, self.log = free_port(), folder / f"log-{free_port()}.txt"
        self.argv = [
            word.replace(":5000", f":{self.port}").replace("=5000", f"={self.port}").replace("/mlflow/", f"{folder}/")
            for word in service.argv
        ]
        here = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder),
            "PGHOST": "127.0.0.1", "PGPORT": str(server.port),
            "MLFLOW_AUTH_CONFIG_PATH": str(root / "docker" / "mlflow" / "basic_auth.ini"),
        }  # fmt: skip
        self.environment = {**service.environment, **here}
        self.folder, self.starts = folder, 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv, env=self.environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> int:
        """SIGTERM as `docker stop` sends it, and how it ended; whatever is left gets SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def status(self, path: str, *, host: str | None = None, user: str = "nml", password: str | None = None) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        if password is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
        if host is not None:
            request.add_header("Host", host)
        try:
            return int(urllib.request.urlopen(request, timeout=60).status)
        except urllib.error.HTTPError as error:
            return error.code

    def answers(self) -> bool:
        try:
            return self.status("/health") == 200
        except OSError:
            return False

    def wait(self) -> None:
        """Until it answers, however often it has to be started (compose: `restart: unless-stopped`)."""
        end = time.monotonic() + 240
        while not self.answers():
            assert time.monotonic() < end, self.log.read_text()
            if self.process.poll() is not None:
                self.starts += 1
                assert self.starts <= 5, self.log.read_text()
                self.start()
            time.sleep(0.5)

    def client(self, what: str) -> str:
        """What a job's process would do, with the variables that the dispatcher hands on to it."""
        told = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.port}", "MLFLOW_TRACKING_USERNAME": "nml",
            "MLFLOW_TRACKING_PASSWORD": self.secrets["MLFLOW_PASSWORD"], "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        }  # fmt: skip
        command = [sys.executable, "-c", CLIENT, what]
        done = subprocess.run(command, env=told, capture_output=True, text=True, cwd=self.folder, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]


@pytest.fixture
def postgres() -> Iterator[PostgreSQL]:
    with running() as server:
        yield server


def prepared(root: Path, folder: Path, server: PostgreSQL) -> Container:
    made = Container(root, folder, server)
    passwords = {role: made.secrets[f"{role.upper()}_DATABASE_PASSWORD"] for role in ("nml", "mlflow")}
    assert run_init(server, **passwords).returncode == 0
    ask_for_passwords(server)
    return made


def test_it_asks_for_a_password_and_keeps_runs_and_artifacts(repo_root, tmp_path, postgres):
    container = prepared(repo_root, tmp_path, postgres)
    password = container.secrets["MLFLOW_PASSWORD"]
    container.start()
    try:
        container.wait()
        assert container.status(SEARCH) == 401
        assert container.status(SEARCH, password="password1234") == 401
        assert container.status(SEARCH, user="admin", password="password1234") == 401
        assert container.status(SEARCH, password=password) == 200
        assert container.status("/api/2.0/mlflow-artifacts/artifacts?path=") == 401
        assert container.status("/graphql") == 401
        assert container.status(SEARCH, host="evil.example", password=password) == 403
        assert container.client("log") == "0.25 thirteen words"
    finally:
        code = container.stop()
    assert code in (0, -signal.SIGTERM), container.log.read_text()

    container.start()
    try:
        container.wait()
        assert container.status(SEARCH) == 401
        assert container.client("look") == "0.25 thirteen words"
    finally:
        container.stop()
    assert "thirteen words" in [file.read_text() for file in (tmp_path / "artifacts").rglob("words.txt")]
    log = container.log.read_text()
    assert not [name for name, value in container.secrets.items() if value in log]
    assert not [word for word in container.argv for value in container.secrets.values() if value in word]


def test_two_first_starts_at_once_end_with_whole_tables(repo_root, tmp_path, postgres):
    """As two containers would, without a lock file in common; compose starts one that has failed again."""
    first, second = (prepared(repo_root, tmp_path, postgres) for _ in range(2))
    for number, each in enumerate((first, second)):
        (tmp_path / str(number)).mkdir()
        each.environment = {**each.environment, "TMPDIR": str(tmp_path / str(number))}
        each.start()
    try:
        first.wait()
        second.wait()
        assert first.client("log") == second.client("look") == "0.25 thirteen words"
    finally:
        for each in (first, second):
            each.stop()
    with psycopg.connect(postgres.url("mlflow")) as connection:
        assert connection.execute("SELECT count(*) FROM users WHERE is_admin").fetchone() == (1,)
        for table in ("alembic_version", "alembic_version_auth"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)
