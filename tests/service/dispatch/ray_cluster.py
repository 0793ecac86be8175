"""A Ray cluster of its own for tests: one head with its dashboard on loopback, token needed, ended by its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

START_SECONDS = 240.0  # mostly 15, but a busy machine can take minutes


@dataclass(frozen=True)
class Cluster:
    """Where it is, and what lets one in."""

    url: str
    token: str
    process: int  # the `ray start` whose children all the others are

    @property
    def environment(self) -> dict[str, str]:
        """Of someone who may use it."""
        return {"RAY_AUTH_TOKEN": self.token, "RAY_AUTH_MODE": "token"}


@contextmanager
def ray_cluster(*, cpus: int = 2, variables: dict[str, str] | None = None) -> Iterator[Cluster]:
    """`ray start --head` with `variables` in its environment. Ended by its processes: `ray stop` ends everyone's."""
    token = "a-token-of-these-tests-" + "0" * 16
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "NML_"))}
    environment |= {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then takes 127.0.0.1 for an address like any other
        **(variables or {}),
    }  # fmt: skip
    with ExitStack() as stack:
        short = stack.enter_context(TemporaryDirectory(dir="/tmp", prefix="r", ignore_cleanup_errors=True))
        ports = _free_ports(4)
        output = stack.enter_context((Path(short) / "start.txt").open("w+"))
        head = subprocess.Popen(
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats",
                "--node-ip-address", "127.0.0.1", "--port", ports[0], "--ray-client-server-port", ports[1],
                "--dashboard-agent-listen-port", ports[2], "--dashboard-host", "127.0.0.1",
                "--dashboard-port", ports[3], "--include-dashboard", "true", "--temp-dir", short,
                "--num-cpus", str(cpus), "--num-gpus", "0", "--object-store-memory", str(10**8),
            ],
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        stack.callback(_end, head)
        cluster = Cluster(f"http://127.0.0.1:{ports[3]}", token, head.pid)
        _wait_for(cluster, head, Path(short) / "start.txt")
        yield cluster
        assert head.poll() is None, "a dispatcher must not end a cluster that it did not start"


def _free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]


def _wait_for(cluster: Cluster, head: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    headers = {"Authorization": f"Bearer {cluster.token}"}
    while True:
        assert head.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        try:
            if httpx.get(f"{cluster.url}/api/jobs/", headers=headers, timeout=20).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)


def _end(head: subprocess.Popen[bytes]) -> None:
    """End the head, which ends its children, and then whichever child is still there."""
    children = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
    head.send_signal(signal.SIGTERM)
    head.wait(60)
    _, left = psutil.wait_procs(children, timeout=30)
    for child in left:
        child.kill()
    psutil.wait_procs(left, timeout=30)
