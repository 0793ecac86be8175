"""The process behind one container: `python machine.py SPEC.json` starts it, starts it again, and ends it.

SIGTERM: the container's stop signal, and SIGKILL after its grace. SIGUSR1, or the death of the test: power off, that is
SIGKILL for the first process of its PID namespace, with which the kernel ends all others. Anything else that ends is
started again if the restart policy says so. `SPEC.pid` names that first process as this machine sees it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.cluster.runtime import rootfs
from tests.cluster.runtime import syscalls as sys_

PAUSE_SECONDS = 1.0  # before a restart
STOP, OFF = signal.SIGTERM, signal.SIGUSR1
HEARD = {STOP, OFF, signal.SIGCHLD}
OWN_NAMESPACES = sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS


def main(path: Path) -> int:
    spec = json.loads(path.read_text())
    parent = os.getppid()
    sys_.signal_when_parent_dies(OFF)
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    if os.getppid() != parent:
        return 1
    while True:
        starter, first = start(spec)
        note = path.with_suffix(".pid.new")
        note.write_text(str(first))
        note.replace(path.with_suffix(".pid"))
        code, asked = watch(spec, starter, first)
        path.with_suffix(".pid").unlink()
        if asked or spec["restart"] == "no" or (spec["restart"] == "on-failure" and code == 0):
            return code
        if signal.sigtimedwait({STOP, OFF}, PAUSE_SECONDS):
            return code


def watch(spec: dict[str, Any], starter: int, first: int) -> tuple[int, bool]:
    """Wait for the end, or bring it about; the exit code, and whether it was asked for."""
    deadline, asked = float("inf"), False
    while True:
        heard = signal.sigtimedwait(HEARD, min(1.0, max(0.05, deadline - time.monotonic())))
        done, status = os.waitpid(starter, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), asked
        if heard is not None and heard.si_signo == STOP:
            asked, deadline = True, time.monotonic() + spec["stop_seconds"]
            os.kill(first, signal.Signals[spec["stop_signal"]])
        if (heard is not None and heard.si_signo == OFF) or time.monotonic() > deadline:
            asked = True
            os.kill(first, signal.SIGKILL)


def start(spec: dict[str, Any]) -> tuple[int, int]:
    """A new set of namespaces with the program in it: (our child that waits for it, its first process)."""
    told, tells = os.pipe()
    starter = os.fork()
    if starter == 0:
        try:
            os.close(told)
            sys_.signal_when_parent_dies(signal.SIGKILL)
            with open(f"/run/netns/{spec['namespace']}") as there:
                sys_.setns(there.fileno(), sys_.CLONE_NEWNET)
            sys_.unshare(OWN_NAMESPACES)
            first = os.fork()
            if first == 0:
                sys_.signal_when_parent_dies(signal.SIGKILL)
                become_first(spec)
            os.write(tells, str(first).encode())
            os.close(tells)
            os._exit(exit_code(os.waitpid(first, 0)[1]))
        except BaseException as error:
            complain(spec, error)
    os.close(tells)
    first = int(os.read(told, 32) or 0)
    os.close(told)
    return starter, first


def become_first(spec: dict[str, Any]) -> None:
    """Process 1: the program itself, or (compose: `init`) one that reaps and hands signals on to it."""
    try:
        log = os.open(spec["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        nothing = os.open("/dev/null", os.O_RDONLY)
        sys_.set_hostname(spec["hostname"])
        rootfs.enter_root(spec)
        for descriptor, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, descriptor)
        os.closerange(3, 64)
        os.chdir(spec["workdir"])
        os.umask(0o022)
        program = os.fork() if spec["init"] else 0
        if program == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.setsid() if spec["init"] else None
            os.execve(spec["argv"][0], spec["argv"], spec["environment"])
        signal.pthread_sigmask(signal.SIG_BLOCK, {*HEARD, signal.SIGINT})
        while True:
            number = signal.sigwait({STOP, signal.SIGINT, signal.SIGCHLD})
            if number != signal.SIGCHLD:
                os.kill(program, number)
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == program:
                    os._exit(exit_code(ended[1]))
    except BaseException as error:
        complain(spec, error)


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def complain(spec: dict[str, Any], error: BaseException) -> None:
    os.write(2, f"{spec['hostname']}: not started: {error!r}\n".encode())
    os._exit(125)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
