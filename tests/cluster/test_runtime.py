"""The runtime itself: a container that could do more than an engine's would show less."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.runtime.cluster import wait_for, what_is_missing
from tests.cluster.runtime.compose_file import Service, Volume
from tests.cluster.runtime.container import PROJECT, Container
from tests.cluster.runtime.dockerfile import BASE_PATH
from tests.cluster.runtime.network import NAMESPACES, Fabric, inside, remove_leavings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
SERVE = "python -m http.server 9000 --directory /data"
SAMPLE = Service(
    name="sample", image="sample", argv=("sh", "-c", f"date +%s%N > /data/began; exec {SERVE}"),
    environment={"PATH": f"/opt/nml/bin:{BASE_PATH}"}, user="10001:10001", workdir="/data", networks=("internal",),
    volumes=(Volume("/data", name="data"), Volume("/etc/sample/file", source=Path(__file__), read_only=True)),
    tmpfs=("/tmp:size=8m,mode=1777",), read_only=True, init=True, restart="unless-stopped", stop_seconds=5,
)  # fmt: skip
Make = Callable[..., Container]


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    if reason := what_is_missing():
        pytest.skip(reason)
    found = Fabric(["internal", "public"])
    yield found
    found.remove()


@pytest.fixture
def make(fabric: Fabric, tmp_path: Path) -> Iterator[Make]:
    made: list[Container] = []

    def start(name: str = "sample", **changes: object) -> Container:
        service = replace(SAMPLE, **changes)  # type: ignore[arg-type]
        made.append(Container(service, fabric.add(name, service.networks), tmp_path / name, tmp_path / "volumes"))
        made[-1].start(fabric.names(service.networks))
        wait_for(lambda: _answers(made[-1]), 30, f"{name} to answer")
        return made[-1]

    yield start
    for container in made:
        container.kill()


def _answers(container: Container) -> bool:
    with inside(container.host):
        try:
            socket.create_connection((container.host.address, 9000), timeout=1).close()
        except OSError:
            return False
    return True


def sh(container: Container, script: str) -> subprocess.CompletedProcess[str]:
    return container.execute(["sh", "-c", script])


def test_a_container_runs_as_its_user_with_no_way_up(make: Make) -> None:
    container = make()
    for pid in ("self", "2"):  # a command inside, and the program
        status = dict(line.split(":\t", 1) for line in sh(container, f"cat /proc/{pid}/status").stdout.splitlines())
        assert status["Uid"] == status["Gid"] == "\t".join(["10001"] * 4)
        assert status["Groups"].strip() == ""
        assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
    assert sh(container, "id -un; hostname").stdout.split() == ["nml", "sample"]


def test_only_volumes_and_tmpfs_can_be_written(make: Make) -> None:
    container = make()
    tried = (
        "/",
        "/etc",
        "/usr",
        "/var/tmp",
        "/run",
        "/opt/nml",
        "/opt",
        "/dev",
        "/sys",
        str(PROJECT),
        str(Path.home()),
    )
    script = "; ".join(
        f"touch {place}/x 2>/dev/null && echo {place}" for place in (*tried, "/tmp", "/data", "/dev/shm")
    )
    assert sh(container, script).stdout.split() == ["/tmp", "/data", "/dev/shm"]
    assert sh(container, "echo >> /etc/sample/file").returncode != 0
    assert sh(container, "cat /etc/sample/file").stdout == Path(__file__).read_text()
    assert sh(container, "head -c 9000000 /dev/zero > /tmp/large").returncode != 0  # more than its size


@pytest.mark.parametrize("place, runs", [("/tmp", False), ("/dev/shm", False), ("/data", True)])
def test_as_under_docker_nothing_in_a_tmpfs_can_be_executed(make: Make, place: str, runs: bool) -> None:
    assert (sh(make(), f"cp /bin/true {place}/x && {place}/x").returncode == 0) == runs


def test_it_sees_no_processes_files_or_networks_of_the_machine(make: Make, tmp_path: Path) -> None:
    container = make()
    assert len(sh(container, "ls -d /proc/[0-9]*").stdout.split()) < 10
    assert sh(container, f"ls {tmp_path}").returncode != 0
    assert sh(container, "ls /run /.old").stdout.split() == ["/.old:", "/run:"]
    assert (
        sh(container, "ls /sys/class/net; python -c 'import socket; print(socket.if_nameindex())'").stdout.count("eth")
        <= 2
    )
    found = sh(container, "python -c 'import sys, trainer; print(sys.prefix)'")
    assert found.stdout.strip() == "/opt/nml", found.stderr


def test_capabilities_of_compose_are_given_and_no_others(make: Make) -> None:
    container = make(user="0:0", capabilities=("dac_read_search",))
    status = sh(container, "grep ^Cap /proc/self/status").stdout.split()
    assert status[1::2] == ["0" * 16, f"{1 << 2:016x}", f"{1 << 2:016x}", f"{1 << 2:016x}", "0" * 16]


def test_power_off_ends_every_process_and_a_crash_is_restarted(make: Make) -> None:
    container = make()
    sh(container, "(setsid sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000' &) >/dev/null 2>&1")
    began = (container.folder.parent / "volumes" / "data" / "began").read_text()
    pids = [process.pid for process in container.processes().values()]
    assert len(pids) >= 4
    container.crash()
    wait_for(lambda: (container.folder.parent / "volumes/data/began").read_text() not in ("", began), 30, "a restart")
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    container.kill()
    assert not container.processes()
    assert not container.is_on


def test_stop_is_gentle_and_then_not(make: Make) -> None:
    trapped = f"trap 'echo bye; exit 7' TERM; {SERVE} & wait"
    gentle = make("gentle", argv=("sh", "-c", trapped))
    assert gentle.stop() == 7
    assert "bye" in gentle.last_words()
    deaf = make("deaf", argv=("sh", "-c", f"trap '' TERM; {SERVE}"), stop_seconds=1)
    assert deaf.stop() != 0
    assert not deaf.processes()


def test_a_cut_cable_is_silence_and_a_mended_one_is_not(fabric: Fabric, make: Make) -> None:
    one, other = make("one"), make("other")

    def reaches() -> bool:
        with inside(other.host):
            try:
                socket.create_connection((one.host.address, 9000), timeout=1).close()
            except OSError:
                return False
        return True

    assert reaches()
    fabric.cut("one")
    assert not reaches()
    assert _answers(one)  # it is well, and alone
    fabric.mend("one")
    wait_for(reaches, 30, "it to be reached")


def test_what_a_killed_run_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    if reason := what_is_missing():
        pytest.skip(reason)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(PROJECT)!r})\n"
        "from tests.cluster.runtime.network import Fabric\nimport subprocess\n"
        "fabric = Fabric(['internal']); host = fabric.add('left', ('internal',))\n"
        "subprocess.Popen(['ip', 'netns', 'exec', host.namespace, 'sleep', '1000'])\n"
        f"Path({str(tmp_path / 'prefix')!r}).write_text(fabric.prefix)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", code], check=False)
    assert died.returncode == -signal.SIGKILL
    prefix = (tmp_path / "prefix").read_text()
    living = Fabric(["internal"])
    try:
        assert list(NAMESPACES.glob(f"{prefix}*"))
        remove_leavings()
        assert not list(NAMESPACES.glob(f"{prefix}*"))
        assert (NAMESPACES / living.switch).exists()
        assert os.getpid() == int(living.prefix.split("-")[1].split(".")[0])
    finally:
        living.remove()
