"""One container: a compose service started as a host of its own, out of Linux namespaces (machine.py does the work).

It has its own network, processes, IPC, host name and file system (rootfs.py), and the user of its image, without
capabilities but those of compose and without a way to gain any. Not reproduced: memory and CPU limits (cgroups),
seccomp, names by DNS (/etc/hosts has them), and a writable layer: a service without `read_only` is refused.

The one command that is not an image's own is PostgreSQL's entrypoint, see postgres_entrypoint.sh.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.cluster.runtime.compose_file import Service
from tests.cluster.runtime.network import Host, ip
from tests.postgres import PROGRAMS

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
ENVIRONMENT = Path(sys.prefix)  # the project's .venv; in the images it is /opt/nml
IN_IMAGE = "/opt/nml"
USERS = {10_001: "nml", 999: "postgres"}  # that the images have


@dataclass(frozen=True)
class Process:
    """One process of a container."""

    pid: int  # as this machine numbers it
    words: tuple[str, ...]  # its command line
    environment: tuple[str, ...]


class Container:
    """One running (or stopped) service on one host."""

    def __init__(self, service: Service, host: Host, folder: Path, volumes: Path) -> None:
        """`folder` is its own: files that it needs, and its log. `volumes` holds the named volumes, a folder each."""
        self.service, self.host, self.folder = _with_postgres(service), host, folder
        self.uid, self.gid = user_ids(self.service.user)
        self.log = folder / "log.txt"
        self._volumes = volumes
        self._spec, self._pid = folder / "machine.json", folder / "machine.pid"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)

    def start(self, names: str) -> None:
        """Power on. `names`: its /etc/hosts."""
        assert self.service.read_only, f"{self.service.name}: only services that are read_only can be run here"
        assert not self.is_on, f"{self.host.name} is on already"
        (self.folder / "hosts").write_text(names)
        name = USERS.get(self.uid)
        for file, own in (
            ("passwd", f"{name}:x:{self.uid}:{self.gid}::/tmp:/bin/sh"),
            ("group", f"{name}:x:{self.gid}:"),
        ):
            machines = Path(f"/etc/{file}").read_text()
            (self.folder / file).write_text(machines if name is None else f"{own}\n{machines}")
        (self.folder / "root").mkdir(exist_ok=True)
        self._spec.write_text(json.dumps(self._machine(), indent=1))
        command = [sys.executable, "-I", "-S", str(HERE / "machine.py"), str(self._spec)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")

    @property
    def is_on(self) -> bool:
        """Whether it runs, or would be started again."""
        return self._process is not None and self._process.poll() is None

    @property
    def first_process(self) -> int | None:
        """Process 1 of the container, as this machine numbers it."""
        try:
            return int(self._pid.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def stop(self) -> int:
        """As `docker compose stop`: its stop signal, SIGKILL after its grace; returns the exit code."""
        assert self._process is not None
        if self.is_on:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(self.service.stop_seconds + 30)

    def kill(self) -> None:
        """Power off: every process ends at once, and it is not started again."""
        if self._process is not None and self.is_on:
            self._process.send_signal(signal.SIGUSR1)
            self._process.wait(30)

    def crash(self) -> None:
        """Every process ends at once; the restart policy decides what follows."""
        first = self.first_process
        assert first is not None, f"{self.host.name} does not run"
        os.kill(first, signal.SIGKILL)

    def wait(self, seconds: float) -> int:
        """For a command that ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def execute(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """As `docker compose exec`: a command inside, as the container's user with its environment."""
        first = self.first_process
        if first is None:
            return subprocess.CompletedProcess(list(argv), 126, "", f"{self.host.name} does not run")
        enter = ["nsenter", f"--target={first}", "--net", "--mount", "--pid", "--ipc", "--uts", "--root"]
        command = [*enter, *self._as_user(), "env", f"--chdir={self.service.workdir}", *argv]
        try:
            return subprocess.run(
                command, env={**self._environment(), **(environment or {})}, capture_output=True, text=True,
                check=False, timeout=seconds, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return subprocess.CompletedProcess(list(argv), 124, str(error.stdout or ""), "took too long")

    def is_healthy(self) -> bool:
        """The compose health check, once."""
        health = self.service.health
        if health is None:
            return self.first_process is not None
        return self.execute(health.argv, seconds=health.timeout).returncode == 0

    def wait_until_healthy(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.is_healthy():
            assert self.is_on, f"{self.host.name} has ended:\n{self.last_words()}"
            assert time.monotonic() < end, f"{self.host.name} is not healthy after {seconds:g} s:\n{self.last_words()}"
            time.sleep(0.5)

    def processes(self) -> dict[int, Process]:
        """All that run inside, by their number there."""
        found = {}
        for pid in ip("netns", "pids", self.host.namespace).split():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                words = tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0"))
                environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue  # it has ended meanwhile
            inner = re.search(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
            assert inner is not None
            found[int(inner.group(1))] = Process(int(pid), words, tuple(environment))
        return found

    def last_words(self, characters: int = 4_000) -> str:
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def _environment(self) -> dict[str, str]:
        return {"HOME": "/tmp", "HOSTNAME": self.host.name, **self.service.environment}

    def _as_user(self) -> list[str]:
        program = shutil.which("setpriv")
        assert program is not None
        return [
            program, f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--no-new-privs",
            "--bounding-set=" + ",".join(["-all", *(f"+{each}" for each in self.service.capabilities)]),
            "--inh-caps=-all",
        ]  # fmt: skip

    def _machine(self) -> dict[str, object]:
        places = [{"source": str(ENVIRONMENT), "target": IN_IMAGE, "read_only": True}]
        places += [
            {"source": str(self.folder / name), "target": f"/etc/{name}", "read_only": True}
            for name in ("hosts", "passwd", "group")
        ]
        for volume in self.service.volumes:
            source = volume.source or self._named(volume.name or "")
            places.append({"source": str(source), "target": volume.target, "read_only": volume.read_only})
        return {
            "namespace": self.host.namespace, "hostname": self.host.name, "log": str(self.log),
            "scratch": str(self.folder / "root"), "places": places,
            "needed": needed_paths(), "tmpfs": dict(_tmpfs(each) for each in self.service.tmpfs),
            "shm_bytes": self.service.shm_bytes, "init": self.service.init, "restart": self.service.restart,
            "stop_seconds": self.service.stop_seconds, "stop_signal": self.service.stop_signal,
            "workdir": self.service.workdir, "argv": [*self._as_user(), *self.service.argv],
            "environment": self._environment(),
        }  # fmt: skip

    def _named(self, name: str) -> Path:
        """A named volume takes its owner from the first image that it is mounted in."""
        folder = self._volumes / name
        if not folder.is_dir():
            folder.mkdir(parents=True)
            os.chown(folder, self.uid, self.gid)
        return folder


def _tmpfs(given: str) -> tuple[str, str]:
    """Where, and the options of mount."""
    target, _, options = given.partition(":")
    return target, options or "mode=1777"


def needed_paths() -> list[str]:
    """Folders without which nothing of ours runs: the interpreter, its packages, the project."""
    paths = dict.fromkeys((Path(sys.base_prefix).resolve(), ENVIRONMENT.resolve(), PROJECT))
    return [str(path) for path in paths if not any(path != other and path.is_relative_to(other) for other in paths)]


def user_ids(user: str) -> tuple[int, int]:
    """uid and gid of `10001`, `10001:10001` or a name of this machine."""
    name, _, group = user.partition(":")
    if name.isdigit():
        return int(name), int(group or name)
    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid


def _with_postgres(service: Service) -> Service:
    """PostgreSQL's own image: its programs are this machine's, and so is what its entrypoint does."""
    if not service.image.startswith("postgres:"):
        return service
    argv = service.argv
    if argv[:1] == ("docker-entrypoint.sh",):
        argv = (str(HERE / "postgres_entrypoint.sh"), *argv[1:])
    path = f"{PROGRAMS}:{service.environment['PATH']}"
    return replace(service, argv=argv, environment={**service.environment, "PATH": path})
