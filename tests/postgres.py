"""A real PostgreSQL for tests, started by them: in a folder of its own, on a loopback port, without durability."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.trainer.tracking.mlflow_server import free_port

USER = "postgres"  # initdb and postgres refuse to run as root


def find_programs() -> Path | None:
    """The folder with initdb and postgres, of the newest version installed."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


PROGRAMS = find_programs()
MISSING = PROGRAMS is None
MISSING_REASON = "PostgreSQL's initdb is not on this machine: nothing here is tried on PostgreSQL"


class PostgreSQL:
    """One server; can be killed and started again on the same port and data."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAMS is not None, MISSING_REASON
        self.folder, self.port, self._programs = folder, free_port(), PROGRAMS
        self.process: subprocess.Popen[bytes] | None = None
        self._as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []
        self._user = USER if self._as_user else getpass.getuser()
        if self._as_user:
            shutil.chown(folder, USER)
        initdb = [str(self._programs / "initdb"), "-D", str(folder / "data"), "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run([*self._as_user, *initdb], check=True, capture_output=True, cwd=folder)
        self.start()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """Make an empty database; returns its URL."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # names are the tests' own
        return self.url(name)

    def start(self) -> None:
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        options = ["-h", "127.0.0.1", "-k", str(self.folder), "-F", "-c", "max_connections=200"]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._as_user, *command, *options], stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        end = time.monotonic() + 120
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=10).close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log.txt").read_text()
                assert time.monotonic() < end, (self.folder / "log.txt").read_text()
                time.sleep(0.1)

    def kill(self) -> None:
        """End it at once, as a crash would; open connections break."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # "immediate shutdown": no checkpoint, recovery at the next start
            self.process.wait()
            self.process = None


@contextmanager
def running() -> Iterator[PostgreSQL]:
    with tempfile.TemporaryDirectory(prefix="nml-pg-") as folder:  # short and open to the user: sockets lie in it
        os.chmod(folder, 0o711)
        server = PostgreSQL(Path(folder))
        try:
            yield server
        finally:
            server.kill()
