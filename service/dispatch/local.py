"""Jobs as processes of this machine. Each shim leads a session of its own, so that it survives the dispatcher.

After a restart a job is found by a variable in the environment of its processes (runner.MARKER), whether or not the
dispatcher that started it lived long enough to record the process id.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from service.dispatch.host_id import host_id
from service.dispatch.procfs import command_of, descendants, find_by_variable, has_variable, started
from service.dispatch.runner import (
    MARKER,
    Alive,
    Gone,
    LaunchSpec,
    Status,
    read_outcome,
    shim_command,
    take_attempt,
)

SHIM = "service.dispatch.shim"


class LocalRunner:
    """Runs jobs as processes of this machine, under our own user."""

    outlives_service = False

    def __init__(self, *, host: str | None = None, python: str = sys.executable):
        self._host, self._node, self._python = host or host_id(), platform.node(), python
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # by marker: shims that we started
        self._found: dict[
            str, tuple[int, int | None]
        ] = {}  # by marker: pid and start of shims that another dispatcher started and did not record

    def intent(self, launch: LaunchSpec) -> dict[str, Any]:
        return {"kind": "local", "host": self._host, "node": self._node}

    def start(self, launch: LaunchSpec) -> dict[str, Any]:
        self._children = {name: child for name, child in self._children.items() if child.poll() is None}
        output: int = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # for the error message of a shim that cannot start
            output = os.open(launch.output_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            child = subprocess.Popen(
                shim_command(launch.launch_file, python=self._python), env=dict(launch.environment),
                cwd=launch.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        finally:
            if output >= 0:
                os.close(output)
        self._children[launch.marker] = child
        return {**self.intent(launch), "pid": child.pid, "started": started(child.pid)}

    def poll(self, launch: LaunchSpec, reference: Mapping[str, Any] | None) -> Status:
        if self._shim(launch, reference) is not None:
            return Alive()
        child = self._children.get(launch.marker)
        if outcome := read_outcome(launch):
            self._forget(launch)
            return outcome
        left = find_by_variable(MARKER, launch.marker)
        if left:  # the shim was killed; its trainer must not run beside the next attempt
            _kill(left)
            return Alive()
        descriptor = take_attempt(launch, with_room=False)
        if descriptor is not None:
            os.close(descriptor)  # a shim that has yet to start will start nothing
        elif find_by_variable(MARKER, launch.marker) or read_outcome(launch):  # one that started after our first look
            return Alive()
        self._forget(launch)
        how = "" if child is None else f" (its shim exited with code {child.returncode})"
        return Gone(f"the process on {self._node} is gone and left no outcome{how}")

    def stop(self, launch: LaunchSpec, reference: Mapping[str, Any] | None, *, force: bool) -> None:
        shim = self._shim(launch, reference)
        if not force:
            if shim is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(shim, signal.SIGTERM)
            return
        below = [] if shim is None else [process for process, _ in descendants(shim)]
        own = [] if shim is None else [shim]
        _kill({*below, *find_by_variable(MARKER, launch.marker), *own})

    def close(self) -> None:
        self._children.clear()

    def _forget(self, launch: LaunchSpec) -> None:
        self._children.pop(launch.marker, None)
        self._found.pop(launch.marker, None)

    def _shim(self, launch: LaunchSpec, reference: Mapping[str, Any] | None) -> int | None:
        """The process id of the shim, if it is alive and certainly the one of this attempt."""
        child = self._children.get(launch.marker)
        if child is not None:
            return child.pid if child.poll() is None else None
        if reference is not None and "pid" in reference:
            known, since = int(reference["pid"]), reference["started"]
        elif launch.marker in self._found:
            known, since = self._found[launch.marker]
        else:
            running = [process for process in find_by_variable(MARKER, launch.marker) if SHIM in command_of(process)]
            if not running:
                return None
            known, since = self._found[launch.marker] = running[0], started(running[0])
        is_it = since is not None and started(known) == since and has_variable(known, MARKER, launch.marker)
        return known if is_it else None


def _kill(processes: Any) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
