"""`python -m service.dispatch.shim LAUNCH_FILE`: start one trainer, watch it, and record in any case how it ended.

As small as containerd's (standard library, a few megabytes), it stands between dispatcher and trainer so that
- the outcome is on disk whether or not a dispatcher is alive to see it, and also when the disk is full by then,
- output is read to the end: what the disk does not take is dropped, and the trainer does not notice,
- the trainer ends if the shim is killed (PR_SET_PDEATHSIG), and whatever the trainer leaves behind ends after it, for
  orphans become the shim's children (PR_SET_CHILD_SUBREAPER),
- a trainer without a heartbeat from a dispatcher ends, so that another machine may start it again, and one that was
  started again elsewhere ends at once: a machine that was asleep meanwhile wakes up with its trainer,
- the trainer is a little less important to the scheduler (nice 5) than the API and others on the same machine.

SIGTERM is passed on once: a second one would end a trainer that is writing its checkpoint. Exit code: 0 once the
outcome is written, 1 if it was not, 2 if nothing was started because this attempt had been started before.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.dispatch.procfs import descendants, oom_kills
from service.dispatch.runner import PYTHON, LaunchSpec, is_superseded, read_launch, take_attempt, write_outcome
from trainer.process.parent_death import adopt_orphans, signal_on_parent_death
from trainer.process.stop_signals import StopRequest

TICK_SECONDS = 0.5  # between checks of heartbeat, stop file and counters
TIDY_SECONDS = 20.0  # for processes that outlive the trainer to exit by themselves: Ray takes a while
TAIL_BYTES = 4_096  # of output that may explain a failure
NICENESS = 5
OOM_SCORE = "500"  # so that for lack of memory the kernel ends a trainer, not the service
REPORT_BYTES = 16_384  # of the trainer's failure report
MAX_OUTPUT_BYTES = 50_000_000  # of output.txt; nobody reads more than that

# RLIMIT_DATA counts private writable memory by address, not by use: besides what an estimate knows, stacks (8 MB a
# thread, of which kilobytes are used), arenas, and what allocators round up. With torch on digits, Cora and Photo it
# was 30 to 270 MB below the estimate with one thread, and 40 MB a thread more with eight. Files mapped for reading are
# not counted. This bounds what goes wrong; the plan is what keeps a run small.
MARGIN_SHARE, MARGIN_BYTES, MARGIN_PER_THREAD = 1.25, 500_000_000, 80_000_000


class Shim:
    """Supervises the trainer of one attempt."""

    def __init__(self, launch: LaunchSpec, outcome: int):
        self._launch, self._outcome = launch, outcome
        self._output = _Output(launch.output_file)
        self._report = b""  # what the trainer wrote about its failure
        self._stop = StopRequest(signals=(signal.SIGTERM,), on_repeat=lambda: None)
        self._terminated_at = math.inf  # when we sent it SIGTERM
        self._killed = self._is_unattended = self._superseded = False
        self._heartbeat: tuple[float, float] = (0.0, time.monotonic())  # its mtime, and when we first saw that one
        self._checked = 0.0
        self._ooms = [oom_kills()] * 2  # at the last two checks

    def run(self) -> int:
        """Start the trainer, supervise it, end what it left behind, write the outcome. Returns the exit code."""
        os.umask(0o077)  # of the trainer too: on a cluster it is Ray's that starts us
        adopt_orphans()
        output, output_end = _pipe()
        report, report_end = _pipe()
        wakeup, wakeup_end = _pipe()  # readable as soon as a signal arrives
        os.set_blocking(wakeup_end, False)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._stop.listen()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            child = self._start(output_end, report_end)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._write(None, None, "infra", f"cannot start {self._launch.argv[0]}: {error}", False)
            return 0
        os.close(output_end)
        os.close(report_end)
        readers = {output: self._output.write, report: self._add_report, wakeup: lambda _: None}
        self._supervise(child, readers)
        # Not the last check's count: the kernel counts first and then kills, and we may have checked in between.
        by_kernel = child.returncode == -signal.SIGKILL and not self._killed and oom_kills() > self._ooms[0]
        _end_descendants()
        for end in (output, report):
            while data := _read(end):
                readers[end](data)
        self._conclude(child.returncode, by_kernel)
        return 0

    def _start(self, output_end: int, report_end: int) -> subprocess.Popen[bytes]:
        launch, arm = self._launch, signal_on_parent_death(signal.SIGKILL)
        own = {name: value for name, value in os.environ.items() if launch.inherit and name.startswith(launch.inherit)}
        environment = {**own, **launch.environment, "NML_OUTCOME_FD": str(report_end)}
        command = [sys.executable if launch.argv[0] == PYTHON else launch.argv[0], *launch.argv[1:]]
        limit = None if launch.memory_bytes is None or launch.gpus else data_limit(launch.memory_bytes, launch.cpus)

        def prepare() -> None:
            arm()
            with contextlib.suppress(OSError):
                os.nice(NICENESS)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
            if limit is not None:
                hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
                lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.setrlimit(resource.RLIMIT_DATA, (lower, lower))

        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output_end, stderr=output_end,
            pass_fds=[report_end], preexec_fn=prepare,
        )  # fmt: skip

    def _supervise(self, child: subprocess.Popen[bytes], readers: dict[int, Callable[[bytes], None]]) -> None:
        poller = select.poll()
        for end in readers:
            poller.register(end, select.POLLIN)
        while child.poll() is None:
            for end, _ in poller.poll(1_000 * TICK_SECONDS):
                data = _read(end)
                if data == b"":  # closed at the other end
                    poller.unregister(end)
                elif data is not None:
                    readers[end](data)
            if self._stop.is_set():
                self._terminate(child)
            now = time.monotonic()
            if now - self._checked >= TICK_SECONDS:
                self._checked = now
                self._check(child, now)

    def _check(self, child: subprocess.Popen[bytes], now: float) -> None:
        self._ooms = [self._ooms[1], oom_kills()]
        if self._launch.stop_file.exists():
            self._terminate(child)
        if is_superseded(self._launch):  # at once: a last checkpoint would be written into the other's run
            self._superseded = self._killed = True
            child.kill()
        try:
            touched = self._launch.heartbeat_file.stat().st_mtime
        except OSError:
            touched = 0.0
        # Only a change counts, not the time itself: clocks of two machines differ, and jump.
        if touched != self._heartbeat[0]:
            self._heartbeat = (touched, now)
        if now - self._heartbeat[1] > self._launch.heartbeat_timeout_seconds:
            self._is_unattended = True
            self._terminate(child)
        if self._is_unattended and now > self._terminated_at + self._launch.stop_seconds:
            self._killed = True
            child.kill()

    def _terminate(self, child: subprocess.Popen[bytes]) -> None:
        if self._terminated_at == math.inf:
            self._terminated_at = time.monotonic()
            child.terminate()

    def _add_report(self, data: bytes) -> None:
        self._report = (self._report + data)[:REPORT_BYTES]

    def _conclude(self, returncode: int, by_kernel: bool) -> None:
        exit_code, by = (returncode, None) if returncode >= 0 else (None, -returncode)
        kind, message = _reported(self._report)
        if self._superseded and returncode != 0:
            kind, message = "infra", "stopped because a later attempt at the job has started"
        elif self._is_unattended and returncode != 0:
            seconds = self._launch.heartbeat_timeout_seconds
            kind, message = "infra", f"stopped after {seconds:g} s without a heartbeat from a dispatcher"
        elif by_kernel:
            kind, message = "oom", "memory ran out, and the kernel killed the process"
        elif message is None and returncode != 0:
            how = f"exited with code {exit_code}" if by is None else f"was ended by {_signal_name(by)}"
            last = self._output.tail.decode("utf-8", "replace").strip()
            message = f"the process {how}" + (f". Its last output:\n{last}" if last else " and wrote no output")
        self._write(exit_code, by, kind, message, by_kernel)

    def _write(self, exit_code: int | None, by: int | None, kind: str | None, message: str | None, oom: bool) -> None:
        document: dict[str, Any] = {
            "exit_code": exit_code, "signal": by, "kind": kind, "message": message, "oom_killed": oom,
            "ended": time.time(),
        }  # fmt: skip
        write_outcome(self._outcome, document)


class _Output:
    """Writes output.txt for as long as there is room on the disk, and keeps the end of the output in memory."""

    def __init__(self, file: Path):
        self.tail = b""
        self._room = 0
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._room = MAX_OUTPUT_BYTES - os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        if self._descriptor is None or self._room <= 0:
            return
        part = data[: self._room]
        with contextlib.suppress(OSError):  # disk full: this part is lost, the next may fit again
            self._room -= os.write(self._descriptor, part)


def data_limit(memory_bytes: int, threads: int) -> int:
    """RLIMIT_DATA for a trainer that is planned to use so much memory: a bound for when the plan is wrong."""
    return int(MARGIN_SHARE * memory_bytes) + MARGIN_BYTES + threads * MARGIN_PER_THREAD


def _pipe() -> tuple[int, int]:
    """Reading end, which does not block, and writing end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def _read(end: int) -> bytes | None:
    """What there is to read; None: nothing yet; empty: closed at the other end."""
    try:
        return os.read(end, 65_536)
    except BlockingIOError:
        return None


def _reported(report: bytes) -> tuple[str | None, str | None]:
    """Kind and message from trainer.process.outcome. Only the first report counts: later ones follow from it."""
    try:
        document = json.loads(report.split(b"\n", 1)[0])
        return str(document["kind"]), str(document["message"])
    except (ValueError, KeyError, TypeError):
        return None, None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_descendants(wait: Callable[[float], None] = time.sleep) -> None:
    """End what the trainer left behind: its own process group at once, while other groups may tidy up first."""
    group, deadline = os.getpgrp(), time.monotonic() + TIDY_SECONDS
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # orphans that we have adopted
                pass
        left = descendants(os.getpid())
        if (
            not left or time.monotonic() > deadline + TIDY_SECONDS
        ):  # a process that waits for a disk survives even SIGKILL
            return
        for process, its_group in left:
            if its_group == group or time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
        wait(0.05)


def main(arguments: list[str]) -> int:
    """Run the attempt that the launch file describes."""
    launch = read_launch(Path(arguments[0]))
    descriptor = take_attempt(launch)
    if descriptor is None:
        sys.stderr.write(f"attempt {launch.marker} has been started before\n")
        return 2
    return Shim(launch, descriptor).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
