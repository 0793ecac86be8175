"""The service as a whole: its processes are restarted when they die, and end with it."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from service.dispatch import supervisor
from service.dispatch.supervisor import Child, serve
from service.settings import Settings
from tests.service.dispatch.conftest import until
from trainer.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[3]
CODE = "from service.dispatch.supervisor import serve; from service.settings import Settings; serve(Settings(){})"


class Service:
    """A supervisor in a process of its own."""

    def __init__(self, settings: Settings, arguments: str = "") -> None:
        settings.home.mkdir(parents=True, exist_ok=True)
        # temporary folders there: a supervisor that is killed leaves its own behind
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(settings.home)}
        environment = os.environ | settings.environment() | own
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE.format(arguments)], env=environment, stdout=subprocess.PIPE, text=True
        )

    def address(self) -> str:
        """The port, once the API answers and we are told so."""
        return self.said("API").split("://")[1].split("/")[0]

    def said(self, beginning: str) -> str:
        """The next line that begins so; the first ones come when all its processes have been started."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line
        raise AssertionError("it ended")

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, module: str) -> psutil.Process:
        return until(lambda: next((one for one in self.family() if module in _words(one)), None))


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it may end between any two looks
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def status(address: str, path: str) -> int | None:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@pytest.fixture
def service(settings):
    found: list[Service] = []

    def start(arguments: str = "", **changes) -> Service:
        found.append(Service(settings.model_copy(update={"port": 0, **changes}), arguments))
        return found[-1]

    yield start
    for one in found:
        with suppress(psutil.Error):
            for process in one.family():
                process.kill()
        one.process.kill()
        one.process.wait()


@pytest.mark.slow
def test_what_dies_is_started_again_and_clients_are_not_refused_meanwhile(service):
    running = service()
    address = running.address()
    until(lambda: status(address, "/readyz") == 200)
    api, dispatcher = running.part("service.serve_api"), running.part("service.dispatch")
    api.kill()
    api.wait(120)
    assert status(address, "/livez") == 200  # waits in the listening socket for the next one
    assert running.part("service.serve_api").pid != api.pid
    dispatcher.kill()
    until(lambda: running.part("service.dispatch").pid != dispatcher.pid)
    until(lambda: status(address, "/readyz") == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it_in_good_order(service, number):
    running = service()
    address = running.address()
    family = running.family()
    assert len(family) == 2
    running.process.send_signal(number)
    assert running.process.wait(120) == 0
    assert not [process for process in family if process.is_running()]
    assert status(address, "/livez") is None


@pytest.mark.slow
def test_nothing_of_the_service_outlives_its_supervisor(service):
    running = service()
    address = running.address()
    family = running.family()
    running.process.kill()
    running.process.wait()
    until(lambda: not [one for one in family if _lives(one)])
    assert status(address, "/livez") is None


@pytest.mark.slow
def test_several_api_processes_share_the_port(service):
    running = service(api_workers=2)
    address = running.address()
    parts = until(
        lambda: len(found := [p for p in running.family() if "service.serve_api" in _words(p)]) == 2 and found
    )
    parts[0].kill()
    parts[0].wait(120)
    assert all(status(address, "/livez") == 200 for _ in range(20))


@pytest.mark.slow
@pytest.mark.parametrize("role, module", [("api", "service.serve_api"), ("dispatcher", "service.dispatch")])
def test_each_part_can_run_alone(service, role, module):
    running = service(f", role={role!r}")
    running.said("API" if role == "api" else "dispatcher running")
    alone = running.part(module)
    assert psutil.Process(running.process.pid).children() == [alone]


def test_a_port_that_is_taken_is_refused_with_advice(settings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        chosen = settings.model_copy(update={"port": taken.getsockname()[1]})
        with pytest.raises(InvalidInput, match="choose another --port"):
            serve(chosen)


def test_one_that_cannot_live_is_tried_again_after_longer_and_longer_pauses(monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    child, starts = Child("x", [sys.executable, "-S", "-c", ""], os.environ, 1.0), []
    while len(starts) < 9:
        before = child.process
        child.ensure_running()
        if child.process is not None and before is None:
            starts.append(now[0])
            child.process.wait()
        now[0] += 0.1
    pauses = [round(later - earlier, 1) for earlier, later in itertools.pairwise(starts)]
    assert [round(pause) for pause in pauses[1:]] == [1, 2, 4, 5, 5, 5, 5]


def test_one_that_cannot_even_be_started_is_tried_again(tmp_path, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    program = tmp_path / "program"
    child = Child("x", [str(program)], os.environ, 1.0)
    child.ensure_running()
    assert child.process is None
    program.symlink_to(sys.executable)
    child.ensure_running()
    assert child.process is None  # not at once
    now[0] += 1.0
    child.ensure_running()
    assert child.process is not None
    assert child.process.wait(120) == 0


def test_the_tracker_s_password_is_in_no_link_and_on_no_command_line(settings):
    remote = settings.model_copy(update={"mlflow_uri": "https://me:secret@tracker:5443/ui"})
    assert supervisor._mlflow(remote)[1].mlflow_ui_url == "https://tracker:5443/ui"
    database = settings.model_copy(update={"mlflow_uri": "postgresql://me:secret@database/mlflow"})
    (child,), _ = supervisor._mlflow(database)
    assert not any("secret" in word for word in child.command)
    assert child.environment["MLFLOW_BACKEND_STORE_URI"] == "postgresql://me:secret@database/mlflow"


@pytest.mark.slow
def test_mlflows_pages_run_beside_it_and_end_with_it(service):
    running = service(", mlflow_ui=True")
    address = running.address()
    pages = running.said("MLflow").split("://")[1].strip()
    until(lambda: status(pages, "/") == 200, 200)
    until(lambda: status(address, "/readyz") == 200)
    family = running.family()
    running.process.kill()
    running.process.wait()
    until(lambda: not [one for one in family if _lives(one)])
