"""The shim with real processes and real signals: whatever happens, an outcome says so, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.dispatch import procfs
from service.dispatch.runner import (
    BLANK,
    MARKER,
    LaunchSpec,
    Outcome,
    read_launch,
    read_outcome,
    shim_command,
    take_attempt,
    write_launch,
)
from service.dispatch.shim import TIDY_SECONDS, Shim, data_limit
from tests.service.dispatch import shim_process
from tests.service.dispatch.conftest import until

ROOT = Path(__file__).resolve().parents[3]


def launch_spec(directory: Path, code: str, **changes: Any) -> LaunchSpec:
    """A launch spec whose trainer is a line of Python."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), MARKER: f"{directory.name}.1"}
    made = LaunchSpec(
        directory.name,
        1,
        ("python", "-c", code),
        environment,
        directory,
        **{"heartbeat_timeout_seconds": 600.0, **changes},
    )
    write_launch(made)
    return made


def start(launch: LaunchSpec) -> subprocess.Popen[bytes]:
    command = shim_command(launch.launch_file, python=sys.executable)
    return subprocess.Popen(command, env=dict(launch.environment), start_new_session=True, stderr=subprocess.PIPE)


class Clock:
    """Seconds for a shim, which pass when we say so."""

    def __init__(self, file: Path):
        self.file = file
        self.file.touch()

    def start(self, launch: LaunchSpec) -> subprocess.Popen[bytes]:
        """A shim that goes by this clock."""
        command = [sys.executable, shim_process.__file__, str(launch.launch_file), str(self.file)]
        return subprocess.Popen(command, env=dict(launch.environment), start_new_session=True, stderr=subprocess.PIPE)

    def advance(self, seconds: int) -> None:
        with self.file.open("ab", buffering=0) as file:
            file.write(bytes(seconds))


def said(launch: LaunchSpec) -> list[str]:
    """The words that the trainer has printed so far."""
    return launch.output_file.read_text().split() if launch.output_file.exists() else []


def concluded(launch: LaunchSpec, shim: subprocess.Popen[bytes], seconds: float = 120.0) -> Outcome:
    """Wait for the end of a shim."""
    _, errors = shim.communicate(timeout=seconds)
    assert shim.returncode == 0, errors.decode()
    outcome = read_outcome(launch)
    assert outcome is not None
    assert not procfs.find_by_variable(MARKER, launch.marker)
    return outcome


def kept(launch: LaunchSpec, seconds: float = 120.0) -> Outcome:
    """Run a launch spec to its end."""
    return concluded(launch, start(launch), seconds)


def test_a_launch_spec_reads_back_as_it_was_written(tmp_path):
    launch = launch_spec(tmp_path, "pass", memory_bytes=7, cpus=2, gpus=1, inherit=("RAY_",))
    assert read_launch(launch.launch_file) == launch
    assert launch.launch_file.stat().st_mode & 0o077 == 0


def test_success_and_output(tmp_path):
    launch = launch_spec(tmp_path, "import sys; print('hello'); print('world', file=sys.stderr)")
    assert kept(launch) == Outcome(0)
    assert sorted(launch.output_file.read_text().split()) == ["hello", "world"]


def test_the_trainer_gets_exactly_the_environment_of_the_launch_spec(tmp_path, monkeypatch):
    monkeypatch.setenv("NML_DATABASE_URL", "postgresql://user:secret@host/db")
    launch = launch_spec(tmp_path, "import json, os; print(json.dumps(dict(os.environ)))")
    kept(launch)
    seen = json.loads(launch.output_file.read_text())
    assert seen.pop("NML_OUTCOME_FD").isdigit()
    seen.pop("LC_CTYPE", None)  # which Python sets itself
    assert seen == dict(launch.environment)


@pytest.mark.parametrize(
    "kind, message", [("invalid", 'α "quoted"\nsecond line'), ("oom", "m" * 5_000)], ids=["quotes", "long"]
)
def test_the_trainers_own_words_are_the_message(tmp_path, kind, message):
    errors = {"invalid": "InvalidInput", "oom": "OutOfMemory"}
    report = f"report_failure(errors.{errors[kind]}({message!r}))"
    code = f"from trainer import errors; from trainer.process.outcome import report_failure; {report}; exit(3)"
    outcome = kept(launch_spec(tmp_path, code))
    assert (outcome.exit_code, outcome.kind) == (3, kind)
    assert outcome.message == message[:3_000]


def test_without_words_the_last_of_the_output_is_the_message(tmp_path):
    outcome = kept(launch_spec(tmp_path, "print('x' * 100_000); raise KeyError('the culprit')"))
    assert outcome.exit_code == 1
    assert outcome.message is not None
    assert "exited with code 1" in outcome.message
    assert outcome.message.endswith("KeyError: 'the culprit'")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_by_signal_is_told(tmp_path, number):
    outcome = kept(launch_spec(tmp_path, f"import os; os.kill(os.getpid(), {int(number)})"))
    assert (outcome.exit_code, outcome.signal, outcome.oom_killed) == (None, number, False)
    assert number.name in (outcome.message or "")


def test_a_command_that_does_not_exist_is_told(tmp_path):
    launch = launch_spec(tmp_path, "")
    missing = LaunchSpec(**{**vars(launch), "argv": ("/no/such/program",)})
    write_launch(missing)
    outcome = kept(missing)
    assert (outcome.exit_code, outcome.kind) == (None, "infra")
    assert "/no/such/program" in (outcome.message or "")


def test_an_attempt_is_started_once(tmp_path):
    trace = tmp_path / "ran"
    launch = launch_spec(tmp_path, f"open({str(trace)!r}, 'a').write('x')")
    launch.directory.mkdir(exist_ok=True)
    kept(launch)
    again = start(launch)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 2
    assert b"started before" in errors
    assert (read_outcome(launch), trace.read_text()) == (Outcome(0), "x")


def test_a_runner_that_gave_an_attempt_up_keeps_a_late_shim_from_starting_it(tmp_path):
    launch = launch_spec(tmp_path, "print('ran')")
    assert take_attempt(launch, with_room=False) is not None
    shim = start(launch)
    shim.communicate(timeout=120)
    assert shim.returncode == 2
    assert not launch.output_file.exists()
    assert read_outcome(launch) is None


def test_sigterm_is_handed_on_once(tmp_path):
    code = f"""
import os, signal, time
count = 0
def hear(*_):
    global count
    count += 1
    os.write(1, b"heard-%d " % count)
signal.signal(signal.SIGTERM, hear)
while not os.path.exists({str(tmp_path / "go")!r}):
    os.write(1, b"alive ")
    time.sleep(0.02)
exit(6)
"""
    launch = launch_spec(tmp_path, code)
    shim = start(launch)
    until(lambda: "alive" in said(launch))
    for _ in range(5):
        shim.terminate()
        until(lambda: "heard-1" in said(launch))
        before = len(said(launch))
        until(lambda before=before: len(said(launch)) > before + 2)  # the shim has come round
    (tmp_path / "go").touch()
    shim.communicate(timeout=120)
    assert [word for word in said(launch) if word != "alive"] == ["heard-1"]
    assert read_outcome(launch).exit_code == 6


def test_the_stop_file_asks_as_a_signal_does(tmp_path):
    launch = launch_spec(tmp_path, "import time; time.sleep(600)")
    shim = start(launch)
    until(lambda: launch.outcome_file.exists())
    launch.stop_file.touch()
    shim.communicate(timeout=120)
    assert read_outcome(launch).signal == signal.SIGTERM


FAMILY = """
import os, signal, subprocess, sys, time
sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
for own in (False, True):
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session={own})"
    subprocess.Popen([sys.executable, "-c", parent]).wait()
print("ready", flush=True)
"""


def test_what_the_trainer_leaves_behind_is_ended(tmp_path):
    """Grandchildren whose parents are gone: one in the group, one in a session of its own that does not listen."""
    launch, clock = launch_spec(tmp_path, FAMILY), Clock(tmp_path / "clock")
    shim = clock.start(launch)
    until(lambda: "ready" in said(launch))
    until(lambda: len(procfs.find_by_variable(MARKER, launch.marker)) == 2)  # the shim and the one with time to tidy up
    clock.advance(int(TIDY_SECONDS) + 1)
    assert concluded(launch, shim) == Outcome(0)


def test_the_trainer_ends_with_its_shim(tmp_path):
    launch = launch_spec(tmp_path, "import time; print('ready', flush=True); time.sleep(600)")
    shim = start(launch)
    until(lambda: "ready" in said(launch))
    assert len(procfs.find_by_variable(MARKER, launch.marker)) == 2
    shim.kill()
    shim.communicate()
    until(lambda: not procfs.find_by_variable(MARKER, launch.marker))
    assert read_outcome(launch) is None  # blanks
    assert launch.outcome_file.read_bytes() == BLANK


def test_a_run_that_nobody_looks_after_ends_gently_then_by_force(tmp_path):
    code = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
for _ in range(600): time.sleep(1)
"""
    launch, clock = (
        launch_spec(tmp_path, code, heartbeat_timeout_seconds=60.0, stop_seconds=30.0),
        Clock(tmp_path / "clock"),
    )
    shim = clock.start(launch)
    until(lambda: said(launch) == ["ready"])
    clock.advance(61)
    until(lambda: "asked" in said(launch))
    clock.advance(31)
    outcome = concluded(launch, shim)
    assert (outcome.signal, outcome.kind, outcome.oom_killed) == (signal.SIGKILL, "infra", False)
    assert "without a heartbeat" in (outcome.message or "")
    assert said(launch) == ["ready", "asked"]


def test_a_run_that_was_started_again_elsewhere_ends_at_once(tmp_path):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    launch = launch_spec(tmp_path, code, stop_seconds=600.0)
    shim = start(launch)
    until(lambda: "ready" in said(launch))
    write_launch(replace(launch, attempt=3))  # whose predecessor never got so far
    shim.communicate(timeout=120)
    outcome = read_outcome(launch)
    assert outcome is not None
    assert (outcome.signal, outcome.kind, outcome.oom_killed) == (signal.SIGKILL, "infra", False)
    assert outcome.message == "stopped because a later attempt at the job has started"


def test_the_trainer_yields_to_the_service(tmp_path):
    launch = launch_spec(tmp_path, "import os; print(os.nice(0))")
    kept(launch)
    assert int(launch.output_file.read_text()) == min(os.nice(0) + 5, 19)


def test_a_run_on_its_heartbeat_goes_on_whatever_the_clock_says(tmp_path):
    launch = launch_spec(tmp_path, "", heartbeat_timeout_seconds=5.0)
    shim = Shim(launch, take_attempt(launch))
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        now = time.monotonic()
        for tick in (7, 8, 3, 4, 5, 9):  # 1970, and not always later: another machine's clock
            launch.heartbeat_file.touch()
            os.utime(launch.heartbeat_file, (tick, tick))
            shim._check(child, now)
            shim._check(child, now + 4.9)
            now += 5.0
        assert (shim._terminated_at, shim._killed, child.poll()) == (math.inf, False, None)
        shim._check(child, now + 0.1)  # longer than the timeout since the last change
        assert child.wait(120) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_memory_beyond_the_limit_is_refused_and_mapped_files_do_not_count(tmp_path):
    code = """
import mmap, os
with open("big", "wb") as file: file.truncate(4 * 10**9)
with open("big", "rb") as file: mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
bytearray(400_000_000)
print("within", flush=True)
try: bytearray(2_000_000_000)
except MemoryError: exit(4)
"""
    launch = launch_spec(tmp_path, f"import os; os.chdir({str(tmp_path)!r})\n{code}", memory_bytes=300_000_000)
    assert kept(launch).exit_code == 4
    assert launch.output_file.read_text().split() == ["within"]
    assert data_limit(300_000_000, 1) < 1_000_000_000


def test_torch_with_several_threads_works_within_the_limit_of_what_it_needs(tmp_path):
    code = """
import torch
torch.set_num_threads(8)
a = torch.randn(2000, 2000)
print(float((a @ a).sum()) != 0)
"""
    launch = launch_spec(tmp_path, code, memory_bytes=300_000_000, cpus=8)
    assert kept(launch, 240).exit_code == 0, launch.output_file.read_text()


def test_a_flood_of_output_is_bounded_on_disk(tmp_path):
    launch = launch_spec(tmp_path, "for _ in range(2_000): print('x' * 49_999)\nprint('the end')")
    assert kept(launch) == Outcome(0)
    assert launch.output_file.stat().st_size == 50_000_000


def test_a_full_disk_neither_stops_the_trainer_nor_loses_the_outcome(small_disk):
    code = "for _ in range(100): print('x' * 9_999)\nprint('the end'); raise SystemExit(5)"
    launch = launch_spec(small_disk, code)
    outcome = kept(launch)
    assert outcome.exit_code == 5
    assert (outcome.message or "").endswith("the end")
    assert os.statvfs(small_disk).f_bavail == 0


def test_no_room_for_an_outcome_means_no_start(small_disk):
    launch = launch_spec(small_disk, "print('ran')")
    with contextlib.suppress(OSError):
        (small_disk / "filling").write_bytes(bytes(1_000_000))
    shim = start(launch)
    shim.communicate(timeout=120)
    assert shim.returncode == 1
    assert read_outcome(launch) is None


def test_kernel_oom_counts_are_read_from_both_versions_of_control_groups(tmp_path):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    for folder in (proc / "self", cgroup / "a", cgroup / "memory" / "b"):
        folder.mkdir(parents=True)
    assert procfs.oom_kills(proc, cgroup) == 0
    (proc / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    (proc / "self" / "cgroup").write_text("4:memory:/b\n0::/a\n")
    (cgroup / "a" / "memory.events").write_text("oom 1\noom_kill 20\n")
    (cgroup / "memory" / "b" / "memory.oom_control").write_text("under_oom 0\noom_kill 100\n")
    assert procfs.oom_kills(proc, cgroup) == 123


def test_for_lack_of_memory_the_kernel_ends_the_trainer_first(tmp_path):
    launch = launch_spec(tmp_path, "print(open('/proc/self/oom_score_adj').read())")
    kept(launch)
    assert int(launch.output_file.read_text()) == 500
    assert int(Path("/proc/self/oom_score_adj").read_text()) < 500
