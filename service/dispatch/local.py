"""Jobs as processes of this machine: each keeper leads a session of its own, so nothing that ends us ends it.

After a restart a job is found again by what its processes carry in their environment (runner.MARKER), whether or not
the one who started it lived long enough to write down its process id.
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

from service.dispatch.descendants import carriers, carries, command_of, descendants, started
from service.dispatch.place import place
from service.dispatch.runner import (
    MARKER,
    Alive,
    Gone,
    Order,
    Status,
    keeper_command,
    read_outcome,
    take_attempt,
)

KEEPER = "service.dispatch.keeper"


class LocalRunner:
    """Processes of this machine, and of the user we run as."""

    outlives_service = False

    def __init__(self, *, host: str | None = None, python: str = sys.executable):
        self._host, self._node, self._python = host or place(), platform.node(), python
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # by marker; those that we started ourselves
        self._found: dict[str, tuple[int, int | None]] = {}  # by marker; keepers whose process nobody wrote down

    def intent(self, order: Order) -> dict[str, Any]:
        return {"kind": "local", "host": self._host, "node": self._node}

    def start(self, order: Order) -> dict[str, Any]:
        self._children = {name: child for name, child in self._children.items() if child.poll() is None}
        output: int = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # for the words of a keeper that cannot even begin
            output = os.open(order.output_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            child = subprocess.Popen(
                keeper_command(order.order_file, python=self._python), env=dict(order.environment),
                cwd=order.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        finally:
            if output >= 0:
                os.close(output)
        self._children[order.marker] = child
        return {**self.intent(order), "pid": child.pid, "started": started(child.pid)}

    def poll(self, order: Order, reference: Mapping[str, Any] | None) -> Status:
        if self._keeper(order, reference) is not None:
            return Alive()
        child = self._children.get(order.marker)
        if outcome := read_outcome(order):
            self._forget(order)
            return outcome
        left = carriers(MARKER, order.marker)
        if left:  # the keeper was killed; what it kept must not live on beside the next attempt
            _kill(left)
            return Alive()
        descriptor = take_attempt(order, with_room=False)
        if descriptor is not None:
            os.close(descriptor)  # and a keeper that has yet to begin will not
        elif carriers(MARKER, order.marker) or read_outcome(order):  # one that began after our first look
            return Alive()
        self._forget(order)
        how = "" if child is None else f" (its keeper ended with {child.returncode})"
        return Gone(f"its process on {self._node} is gone without a trace{how}")

    def stop(self, order: Order, reference: Mapping[str, Any] | None, *, force: bool) -> None:
        keeper = self._keeper(order, reference)
        if not force:
            if keeper is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(keeper, signal.SIGTERM)
            return
        below = [] if keeper is None else [process for process, _ in descendants(keeper)]
        own = [] if keeper is None else [keeper]
        _kill({*below, *carriers(MARKER, order.marker), *own})

    def close(self) -> None:
        self._children.clear()

    def _forget(self, order: Order) -> None:
        self._children.pop(order.marker, None)
        self._found.pop(order.marker, None)

    def _keeper(self, order: Order, reference: Mapping[str, Any] | None) -> int | None:
        """The keeper's process, if it is alive and certainly that of this attempt."""
        child = self._children.get(order.marker)
        if child is not None:
            return child.pid if child.poll() is None else None
        if reference is not None and "pid" in reference:
            known, since = int(reference["pid"]), reference["started"]
        elif order.marker in self._found:
            known, since = self._found[order.marker]
        else:
            running = [process for process in carriers(MARKER, order.marker) if KEEPER in command_of(process)]
            if not running:
                return None
            known, since = self._found[order.marker] = running[0], started(running[0])
        is_it = since is not None and started(known) == since and carries(known, MARKER, order.marker)
        return known if is_it else None


def _kill(processes: Any) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
