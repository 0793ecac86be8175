"""The service on one machine: API processes, a dispatcher and, on request, MLflow's UI, each restarted if it dies.

They end with the supervisor, also if that is killed. Trainers do not: a service that is started again finds them
and takes them over. It must be used from the main thread.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from service.api.edge.multiprocess_metrics import shared_folder
from service.dispatch.dispatcher import FORCED_SECONDS
from service.private_home import create_private_files
from service.serve_api import GRACEFUL_SECONDS, listening_socket
from service.settings import Settings
from service.store import open_store
from service.store.engine import check_file
from service.store.errors import DatabaseDamaged, Unavailable
from trainer.errors import Infrastructure, InvalidInput
from trainer.parallel.connection import python_path
from trainer.process.parent_death import signal_on_parent_death
from trainer.process.stop_signals import SERVICE_SIGNALS, StopRequest

Role = Literal["all", "api", "dispatcher"]
LOOK_SECONDS = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # before a process that died is restarted; doubles
STEADY_SECONDS = 20.0  # after which the pause of a running process is reset
MLFLOW_PORTS = range(5_000, 5_100)
log = logging.getLogger("service")


@dataclass
class Child:
    """A process that should run."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    grace: float  # seconds from SIGTERM to SIGKILL
    sockets: tuple[int, ...] = ()
    death_signal: signal.Signals = signal.SIGKILL  # which it gets if we are killed
    process: subprocess.Popen[bytes] | None = None
    _pause: float = FIRST_PAUSE
    _started: float = 0.0
    _not_before: float = field(default=0.0)

    def ensure_running(self) -> None:
        """Start it, now or after a pause, if it is not running."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            if now - self._started > STEADY_SECONDS:
                self._pause = FIRST_PAUSE
            self.process = None
            self._restart_later(now, f"exited with code {code}")
        elif now >= self._not_before:
            self._started = now
            # A session of its own: Ctrl-C reaches only us, and we stop the children in order.
            try:
                self.process = subprocess.Popen(
                    self.command, env=dict(self.environment), stdin=subprocess.DEVNULL, pass_fds=self.sockets,
                    start_new_session=True, preexec_fn=signal_on_parent_death(self.death_signal),
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:  # such as no memory or no more processes
                self._restart_later(now, f"cannot be started ({error})")

    def _restart_later(self, now: float, why: str) -> None:
        log.warning("%s %s; restarting it in %.1f s", self.name, why, self._pause)
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, until: float) -> None:
        """Wait for its end until then (time.monotonic), then kill it."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("%s has not exited after %g s; killing it", self.name, self.grace)
            self.process.kill()
            self.process.wait()


def serve(
    settings: Settings, role: Role = "all", mlflow_ui: bool = False, *,
    say: Callable[[str], None] = lambda line: print(line, flush=True),  # noqa: T201
) -> None:  # fmt: skip
    """Run the service until SIGTERM, SIGINT or SIGHUP.

    Args:
        say: is called with the addresses, once the API answers.

    Raises:
        InvalidInput: the port is taken, or MLflow's UI is asked for and MLflow is not installed.
        Infrastructure: nothing can be written to the home, or its database is damaged or of a newer version.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    create_private_files()  # MLflow's too
    with contextlib.ExitStack() as stack:
        listener = None if role == "dispatcher" else stack.enter_context(contextlib.closing(_listen(settings)))
        _check_home(settings)
        children, settings = ([], settings) if not mlflow_ui else _mlflow(settings)
        together = listener is not None and settings.api_workers > 1
        counts = stack.enter_context(shared_folder(settings.api_workers)) if together else None
        children = [*children, *_children(settings, role, listener, counts)]
        port = None if listener is None else int(listener.getsockname()[1])
        _supervise(children, _greeting(settings, port, say))


def _check_home(settings: Settings) -> None:
    """Say at once, and once, what would end every process that we start. A server that is away is waited for."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.home):
            pass
        with contextlib.closing(open_store(settings)) as store:
            check_file(store.database)
    except OSError as error:
        raise Infrastructure(
            f"cannot write to the home {settings.home} ({error.strerror or error}). Free space, make it writable, or "
            "choose another --home."
        ) from error
    except DatabaseDamaged as error:
        raise Infrastructure(
            f"the database in {settings.home} is damaged ({error}). Nothing was changed. Restore a backup; how to "
            "save what can still be read is in docs/operations.md."
        ) from error
    except Unavailable as error:
        log.warning("the database cannot be reached yet: %s", error)


def _supervise(children: list[Child], greet: Iterator[None]) -> None:
    with StopRequest(signals=SERVICE_SIGNALS, on_repeat=lambda: _kill(children)) as stop:
        try:
            while not stop.is_set():
                for child in children:
                    child.ensure_running()
                next(greet, None)
                stop.wait(LOOK_SECONDS)
        finally:
            stop.set()  # any signal from now on kills the children
            begun = time.monotonic()
            for child in children:
                child.terminate()
            for child in children:
                child.wait(begun + child.grace)


def _kill(children: list[Child]) -> None:
    for child in children:
        if child.process is not None:
            child.process.kill()


def _children(settings: Settings, role: Role, listener: socket.socket | None, counts: Path | None) -> list[Child]:
    environment = {**os.environ, **python_path(os.environ), **settings.environment()}
    python = [sys.executable, "-P", "-m"]
    found = []
    if listener is not None:
        descriptor = listener.fileno()
        command = [*python, "service.serve_api", "--fd", str(descriptor)]
        for slot in range(1, settings.api_workers + 1):
            name = "API" if settings.api_workers == 1 else f"API {slot}"
            own = [] if counts is None else ["--counts", str(counts), "--slot", str(slot)]
            found.append(Child(name, command + own, environment, GRACEFUL_SECONDS + 5, sockets=(descriptor,)))
    if role != "api":
        grace = settings.stop_grace_seconds + FORCED_SECONDS + 10
        found.append(Child("dispatcher", [*python, "service.dispatch"], environment, grace))
    return found


def _mlflow(settings: Settings) -> tuple[list[Child], Settings]:
    """MLflow's UI on loopback, and settings that link to it; a tracking server on the network has its own UI."""
    if settings.mlflow_ui_url is not None:
        raise InvalidInput(
            "--mlflow-ui starts MLflow's UI, but NML_MLFLOW_UI_URL names another one. Use one of the two."
        )
    uri = settings.tracking_uri
    if uri.startswith(("http://", "https://")):
        return [], settings.model_copy(update={"mlflow_ui_url": _without_credentials(uri)})
    if importlib.util.find_spec("mlflow") is None:
        raise InvalidInput("--mlflow-ui needs MLflow, which is not installed. Run pip install 'nml-gcl[train]'.")
    port = next((port for port in MLFLOW_PORTS if _is_free(port)), 0)
    command = [sys.executable, "-P", "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    places = ["--default-artifact-root", (settings.home / "mlartifacts").as_uri()]
    # Through the environment, because every user can read a command line, and it may hold a password.
    told = {"MLFLOW_BACKEND_STORE_URI": uri}
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    theirs = {
        name: value for name, value in os.environ.items() if not name.startswith("NML_")
    }  # our secrets are not for MLflow
    # SIGTERM, which it passes on to the server that it starts in turn
    child = Child(
        "MLflow", [*command, *places, "--workers", "1"], {**theirs, **told, **quiet}, GRACEFUL_SECONDS + 5,
        death_signal=signal.SIGTERM,
    )  # fmt: skip
    return [child], settings.model_copy(update={"mlflow_ui_url": f"http://127.0.0.1:{port}"})


def _without_credentials(url: str) -> str:
    """The URL without user and password, for a link that everyone may see."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _listen(settings: Settings) -> socket.socket:
    try:
        return listening_socket(settings.host, settings.port)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {settings.host}, port {settings.port} ({error.strerror or error}). "
            "Stop what listens there, or choose another --port."
        ) from error


def _greeting(settings: Settings, port: int | None, say: Callable[[str], None]) -> Iterator[None]:
    """Polls the API, once per step, until it answers; then prints the addresses."""
    if port is None:
        say(f"dispatcher running, home {settings.home}")
        return
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    while not _answers(host, port):
        yield
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    say(f"API      {url}/v1/jobs")
    say(f"console  {url}/")
    say(f"docs     {url}/docs")
    if settings.mlflow_ui_url is not None:
        say(f"MLflow   {settings.mlflow_ui_url}")
    say(f"home     {shlex.quote(str(settings.home))}")


def _answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
