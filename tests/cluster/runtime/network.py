"""The wires: a bridge for each compose network, a network namespace for each host, a pair of interfaces between them.

The bridges lie in a namespace of their own (the switch), so nothing here touches the machine's own network. A cut cable
is the switch's end of a pair taken down: the host keeps its interface and address, and its packets go nowhere.
Every name starts with `nml-<process>.<its start>-`, which tells what a killed test run left from a living one's.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
LEFT = re.compile(r"nml-(\d+)\.(\d+)-\S*")


@dataclass
class Host:
    """One network namespace: what has addresses of its own and can be cut off."""

    name: str
    namespace: str
    addresses: dict[str, str] = field(default_factory=dict)  # network: address
    cables: dict[str, str] = field(default_factory=dict)  # network: interface at the switch

    @property
    def address(self) -> str:
        """Its address on the first of its networks."""
        return next(iter(self.addresses.values()))


class Fabric:
    """The switch and the hosts plugged into it."""

    def __init__(self, networks: list[str]) -> None:
        self.prefix = f"nml-{os.getpid()}.{_started(os.getpid())}-{os.urandom(2).hex()}"
        self.switch = f"{self.prefix}-switch"
        self.subnets = {network: f"10.77.{number}" for number, network in enumerate(networks, 1)}
        self.hosts: dict[str, Host] = {}
        self._plugged = 0
        ip("netns", "add", self.switch)
        for number in range(1, len(networks) + 1):
            ip("-n", self.switch, "link", "add", f"br{number}", "type", "bridge")
            ip("-n", self.switch, "link", "set", f"br{number}", "up")

    def add(self, name: str, networks: tuple[str, ...]) -> Host:
        """A new host with a cable to each of these networks."""
        host = Host(name, f"{self.prefix}-{name}")
        ip("netns", "add", host.namespace)
        ip("-n", host.namespace, "link", "set", "lo", "up")
        self.hosts[name] = host
        for number, network in enumerate(networks):
            self._plugged += 1
            cable, subnet = f"port{self._plugged}", self.subnets[network]
            bridge = f"br{list(self.subnets).index(network) + 1}"
            ends = ("link", "add", cable, "netns", self.switch, "type", "veth", "peer", "name", f"eth{number}")
            ip(*ends, "netns", host.namespace)
            ip("-n", self.switch, "link", "set", cable, "master", bridge, "up")
            host.addresses[network], host.cables[network] = f"{subnet}.{10 + self._plugged}", cable
            ip("-n", host.namespace, "address", "add", f"{host.addresses[network]}/24", "dev", f"eth{number}")
            ip("-n", host.namespace, "link", "set", f"eth{number}", "up")
        return host

    def cut(self, name: str) -> None:
        """Pull every cable of a host."""
        for cable in self.hosts[name].cables.values():
            ip("-n", self.switch, "link", "set", cable, "down")

    def mend(self, name: str) -> None:
        for cable in self.hosts[name].cables.values():
            ip("-n", self.switch, "link", "set", cable, "up")

    def names(self, networks: tuple[str, ...]) -> str:
        """/etc/hosts for someone on these networks: every host there by its name, and by its service's."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for host in self.hosts.values():
            shared = [network for network in networks if network in host.addresses]
            if shared:
                names = dict.fromkeys((host.name, re.sub(r"-\d+$", "", host.name)))
                lines.append(f"{host.addresses[shared[0]]} {' '.join(names)}")
        return "\n".join(lines) + "\n"

    def remove(self) -> None:
        _remove(self.prefix)


@contextmanager
def inside(host: Host) -> Iterator[None]:
    """The calling thread is on that host: sockets and processes made meanwhile stay there."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(NAMESPACES / host.namespace, os.O_RDONLY)
    try:
        _setns(there)
        try:
            yield
        finally:
            _setns(own)
    finally:
        os.close(own)
        os.close(there)


def ip(*arguments: str) -> str:
    """The `ip` command; what it says when it fails is raised."""
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout


def remove_leavings() -> None:
    """Namespaces of test runs that are no more, and the processes in them."""
    names = [path.name for path in NAMESPACES.glob("nml-*")] if NAMESPACES.is_dir() else []
    for name in names:
        matched = LEFT.fullmatch(name)
        if matched and _started(int(matched.group(1))) != int(matched.group(2)):
            _remove(name)


def _remove(prefix: str) -> None:
    names = [path.name for path in NAMESPACES.glob(f"{prefix}*")]
    for name in names:
        end = time.monotonic() + 10
        while (pids := ip("netns", "pids", name).split()) and time.monotonic() < end:
            for pid in pids:
                if int(pid) != os.getpid():
                    _kill(int(pid))
            time.sleep(0.05)
    for name in names:
        ip("netns", "delete", name)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it was quicker


def _started(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0: there is none. With its id it names a process for good."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError):
        return 0


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
