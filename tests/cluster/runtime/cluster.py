"""The whole cluster of docker-compose.yml on this machine: every service a host, and one more that belongs to nobody.

    with running_cluster(folder, scale={"ray-worker": 2}, variables={"RAY_WORKER_CPUS": "2"}) as cluster:
        cluster["api"].execute(["nml", "keys", "list"])

Hosts are named after their service; of a scaled one they are `ray-worker-1`, `ray-worker-2`, … The `outsider` is on
the public network, as whoever calls the published port is. Secrets are random, and made for each cluster.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster.runtime.compose_file import Service, internal_networks, needed_variables, read_compose
from tests.cluster.runtime.container import PROJECT, Container
from tests.cluster.runtime.network import Fabric, Host, remove_leavings
from tests.postgres import PROGRAMS

COMPOSE = PROJECT / "docker-compose.yml"
OUTSIDER = "outsider"
HEALTHY_SECONDS = 300.0  # on a machine with other things to do
# Ten containers share the few cores of a test machine, and Ray gives up on its own parts after half a minute.
RAY_PATIENCE = {
    "RAY_agent_register_timeout_ms": "200000", "RAY_worker_register_timeout_seconds": "200",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "200",
}  # fmt: skip
TOOLS = ("ip", "nsenter", "setpriv", "unshare")


def what_is_missing() -> str | None:
    """Why no cluster can be run here; none: it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not on this machine: {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"no namespaces can be made here: {tried.stderr.strip()}"
    return "PostgreSQL's initdb is not on this machine" if PROGRAMS is None else None


class Cluster:
    """Containers by host name, and the wires between them."""

    def __init__(self, folder: Path, scale: Mapping[str, int], variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.variables = {**{name: secrets.token_hex(24) for name in needed_variables(COMPOSE)}, **variables}
        self.services = read_compose(COMPOSE, self.variables)
        self.networks = internal_networks(COMPOSE)
        self.fabric = Fabric(list(self.networks))
        self.containers: dict[str, Container] = {}
        self.volumes = folder / "volumes"
        self._scale, self._runs = scale, 0
        self.outsider: Host = self.fabric.add(
            OUTSIDER, tuple(each for each, inner in self.networks.items() if not inner)
        )
        for service in self.services.values():
            if not service.profiles:
                for name in self._host_names(service):
                    self._add(name, service)

    def __getitem__(self, name: str) -> Container:
        return self.containers[name]

    def up(self) -> None:
        """Start what is off, in the order of `depends_on`, and wait until all is healthy."""
        for name, container in self._in_order():
            if not container.is_on:
                self._wait_for_those_before(container.service)
                self.start(name)
        for container in self.containers.values():
            if not container.service.profiles:
                container.wait_until_healthy(HEALTHY_SECONDS)

    def start(self, name: str) -> None:
        container = self[name]
        container.start(self.fabric.names(container.service.networks))

    def down(self) -> None:
        """Stop all, those first that need others."""
        for _, container in reversed(list(self._in_order())):
            if container.is_on:
                container.stop()

    def run(self, service: str, *arguments: str, seconds: float = 300.0) -> str:
        """As `docker compose run --rm SERVICE ARGUMENTS…`: once, to its end; its output."""
        described = self.services[service]
        if arguments:
            described = read_compose(COMPOSE, self.variables, commands={service: arguments})[service]
        self._runs += 1
        name = f"{service}-run{self._runs}"
        self._add(name, replace(described, restart="no"))
        self._wait_for_those_before(described)
        self.start(name)
        container = self.containers.pop(name)
        code = container.wait(seconds)
        assert code == 0, f"{service} ended with {code}:\n{container.last_words()}"
        return container.last_words()

    def members(self, service: str) -> list[Container]:
        return [each for each in self.containers.values() if each.service.name == service]

    def url(self) -> str:
        """The API as the outsider knows it."""
        public = next(network for network, inner in self.networks.items() if not inner)
        port = self["api"].service.ports[0].rsplit(":", 1)[-1]
        return f"http://{self['api'].host.addresses[public]}:{port}"

    def last_words(self, characters: int = 2_500) -> str:
        """The end of every log, for a test that failed."""
        ends = (f"--- {name} ---\n{each.last_words(characters)}" for name, each in self.containers.items())
        return "\n".join(ends)

    def remove(self) -> None:
        for container in self.containers.values():
            container.kill()
        self.fabric.remove()

    def _host_names(self, service: Service) -> list[str]:
        number = self._scale.get(service.name)
        return [service.name] if number is None else [f"{service.name}-{each}" for each in range(1, number + 1)]

    def _add(self, name: str, service: Service) -> None:
        if "RAY_AUTH_TOKEN" in service.environment:
            service = replace(service, environment={**RAY_PATIENCE, **service.environment})
        host = self.fabric.add(name, service.networks)
        self.containers[name] = Container(service, host, self.folder / "hosts" / name, self.volumes)

    def _in_order(self) -> Iterator[tuple[str, Container]]:
        done: set[str] = set()
        waiting = dict(self.containers)
        while waiting:
            ready = [name for name, each in waiting.items() if set(each.service.depends_on) <= done]
            assert ready, f"depends_on goes in a circle: {list(waiting)}"
            for name in ready:
                yield name, waiting[name]
            done |= {waiting.pop(name).service.name for name in ready}

    def _wait_for_those_before(self, service: Service) -> None:
        for name, condition in service.depends_on.items():
            for container in self.members(name) if condition == "service_healthy" else ():
                container.wait_until_healthy(HEALTHY_SECONDS)


@contextmanager
def running_cluster(folder: Path, scale: Mapping[str, int], variables: Mapping[str, str]) -> Iterator[Cluster]:
    """Up, and nothing of it left afterwards, nor of an earlier one that was killed."""
    remove_leavings()
    cluster = Cluster(folder, scale, variables)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.remove()


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Look until the condition holds, and return what it gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.25)
    return found
