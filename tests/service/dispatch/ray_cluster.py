"""A Ray cluster of its own for tests: one head with its dashboard on loopback, token needed, ended by its processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import httpx
import psutil

from tests.faults.services import is_gone

START_SECONDS = 240.0  # mostly 15, but a busy machine can take minutes
STARTS = 3  # for Ray itself gives up on some of its parts after half a minute
PATIENCE = {
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "200", "RAY_agent_register_timeout_ms": "200000",
    "RAY_health_check_timeout_ms": "60000", "RAY_worker_register_timeout_seconds": "200",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "200",
}  # fmt: skip
MARK = "CLUSTER_OF_TESTS"  # environment variable by which the processes of a cluster are known


@dataclass(frozen=True)
class Cluster:
    """Where it is, and what lets one in."""

    url: str
    token: str
    directory: str

    @property
    def environment(self) -> dict[str, str]:
        """Of someone who may use it."""
        return {"RAY_AUTH_TOKEN": self.token, "RAY_AUTH_MODE": "token"}

    @property
    def processes(self) -> list[psutil.Process]:
        """Ray's own, and those of its jobs. Some have written their title over their environment."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.directory:
                    found |= {process, *process.children(recursive=True)}
        return [process for process in found if not is_gone(process)]


@contextmanager
def ray_cluster(*, cpus: int = 2) -> Iterator[Cluster]:
    """`ray start --head`, with its dashboard. Ended by its processes, because `ray stop` ends everyone's."""
    token = "a-token-of-these-tests-" + "0" * 16
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "NML_"))}
    environment |= {
        **PATIENCE, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then takes 127.0.0.1 for an address like any other
    }  # fmt: skip
    for last in (number == STARTS - 1 for number in range(STARTS)):
        with ExitStack() as stack:
            short = stack.enter_context(TemporaryDirectory(dir="/tmp", prefix="r", ignore_cleanup_errors=True))
            port, client_port, dashboard_port = _free_ports(3)
            cluster = Cluster(f"http://127.0.0.1:{dashboard_port}", token, short)
            stack.callback(_end, cluster)
            command = [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats",
                "--node-ip-address", "127.0.0.1", "--port", port, "--dashboard-agent-listen-port", "0",
                "--dashboard-host", "127.0.0.1", "--dashboard-port", dashboard_port, "--include-dashboard", "true",
                "--ray-client-server-port", client_port, "--temp-dir", short, "--num-cpus", str(cpus),
                "--num-gpus", "0", "--object-store-memory", str(10**8),
            ]  # fmt: skip
            started = subprocess.run(
                command, env=environment | {MARK: short}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False, timeout=START_SECONDS,
            )  # fmt: skip
            if started.returncode != 0 or not _comes_up(cluster):
                assert not last, started.stdout
                continue
            yield cluster
            return


def _free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]


def _comes_up(cluster: Cluster) -> bool:
    """Whether it answers, and has run a job: its parts come up one by one."""
    deadline = time.monotonic() + START_SECONDS
    headers = {"Authorization": f"Bearer {cluster.token}"}
    job = {"submission_id": "first", "entrypoint": "true"}
    with httpx.Client(base_url=cluster.url, headers=headers, timeout=60) as client:
        while time.monotonic() < deadline:
            try:
                if client.get("/api/jobs/first").status_code == 404:
                    client.post("/api/jobs/", json=job)
                if client.get("/api/jobs/first").json()["status"] == "SUCCEEDED":
                    return True
            except (httpx.TransportError, ValueError, KeyError):
                pass
            time.sleep(0.3)
    return False


def _end(cluster: Cluster) -> None:
    processes = cluster.processes
    for signal in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with suppress(psutil.Error):
                signal(process)
        deadline = time.monotonic() + 5
        while not all(is_gone(process) for process in processes) and time.monotonic() < deadline:
            time.sleep(0.1)
