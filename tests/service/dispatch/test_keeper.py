"""The keeper with real processes and real signals: whatever happens, an outcome says so, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.dispatch import descendants
from service.dispatch.keeper import TIDY_SECONDS, Keeper, data_limit
from service.dispatch.runner import (
    BLANK,
    MARKER,
    Order,
    Outcome,
    keeper_command,
    read_order,
    read_outcome,
    take_attempt,
    write_order,
)
from tests.service.dispatch import keeper_process
from tests.service.dispatch.conftest import until

ROOT = Path(__file__).resolve().parents[3]


def order_for(directory: Path, code: str, **changes: Any) -> Order:
    """An order whose trainer is a line of Python."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), MARKER: f"{directory.name}.1"}
    made = Order(
        directory.name, 1, ("python", "-c", code), environment, directory, **{"leash_seconds": 600.0, **changes}
    )
    write_order(made)
    return made


def start(order: Order) -> subprocess.Popen[bytes]:
    command = keeper_command(order.order_file, python=sys.executable)
    return subprocess.Popen(command, env=dict(order.environment), start_new_session=True, stderr=subprocess.PIPE)


class Clock:
    """Seconds for a keeper, which pass when we say so."""

    def __init__(self, file: Path):
        self.file = file
        self.file.touch()

    def start(self, order: Order) -> subprocess.Popen[bytes]:
        """A keeper that goes by this clock."""
        command = [sys.executable, keeper_process.__file__, str(order.order_file), str(self.file)]
        return subprocess.Popen(command, env=dict(order.environment), start_new_session=True, stderr=subprocess.PIPE)

    def advance(self, seconds: int) -> None:
        with self.file.open("ab", buffering=0) as file:
            file.write(bytes(seconds))


def said(order: Order) -> list[str]:
    """The words that the trainer has printed so far."""
    return order.output_file.read_text().split() if order.output_file.exists() else []


def concluded(order: Order, keeper: subprocess.Popen[bytes], seconds: float = 120.0) -> Outcome:
    """Wait for the end of a keeper."""
    _, errors = keeper.communicate(timeout=seconds)
    assert keeper.returncode == 0, errors.decode()
    outcome = read_outcome(order)
    assert outcome is not None
    assert not descendants.carriers(MARKER, order.marker)
    return outcome


def kept(order: Order, seconds: float = 120.0) -> Outcome:
    """Run an order to its end."""
    return concluded(order, start(order), seconds)


def test_an_order_reads_back_as_it_was_written(tmp_path):
    order = order_for(tmp_path, "pass", memory_bytes=7, cpus=2, gpus=1, inherit=("RAY_",))
    assert read_order(order.order_file) == order
    assert order.order_file.stat().st_mode & 0o077 == 0


def test_success_and_output(tmp_path):
    order = order_for(tmp_path, "import sys; print('hello'); print('world', file=sys.stderr)")
    assert kept(order) == Outcome(0)
    assert sorted(order.output_file.read_text().split()) == ["hello", "world"]


def test_the_trainer_gets_exactly_the_environment_of_the_order(tmp_path, monkeypatch):
    monkeypatch.setenv("NML_DATABASE_URL", "postgresql://user:secret@host/db")
    order = order_for(tmp_path, "import json, os; print(json.dumps(dict(os.environ)))")
    kept(order)
    seen = json.loads(order.output_file.read_text())
    assert seen.pop("NML_OUTCOME_FD").isdigit()
    seen.pop("LC_CTYPE", None)  # which Python sets itself
    assert seen == dict(order.environment)


@pytest.mark.parametrize(
    "kind, message", [("invalid", 'α "quoted"\nsecond line'), ("oom", "m" * 5_000)], ids=["quotes", "long"]
)
def test_the_trainers_own_words_are_the_message(tmp_path, kind, message):
    errors = {"invalid": "InvalidInput", "oom": "OutOfMemory"}
    code = f"from trainer import errors, outcome; outcome.report_failure(errors.{errors[kind]}({message!r})); exit(3)"
    outcome = kept(order_for(tmp_path, code))
    assert (outcome.exit_code, outcome.kind) == (3, kind)
    assert outcome.message == message[:3_000]


def test_without_words_the_last_of_the_output_is_the_message(tmp_path):
    outcome = kept(order_for(tmp_path, "print('x' * 100_000); raise KeyError('the culprit')"))
    assert outcome.exit_code == 1
    assert outcome.message is not None
    assert "exit code 1" in outcome.message
    assert outcome.message.endswith("KeyError: 'the culprit'")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_by_signal_is_told(tmp_path, number):
    outcome = kept(order_for(tmp_path, f"import os; os.kill(os.getpid(), {int(number)})"))
    assert (outcome.exit_code, outcome.signal, outcome.oom_killed) == (None, number, False)
    assert number.name in (outcome.message or "")


def test_a_command_that_does_not_exist_is_told(tmp_path):
    order = order_for(tmp_path, "")
    missing = Order(**{**vars(order), "argv": ("/no/such/program",)})
    write_order(missing)
    outcome = kept(missing)
    assert (outcome.exit_code, outcome.kind) == (None, "infra")
    assert "/no/such/program" in (outcome.message or "")


def test_an_attempt_is_started_once(tmp_path):
    trace = tmp_path / "ran"
    order = order_for(tmp_path, f"open({str(trace)!r}, 'a').write('x')")
    order.directory.mkdir(exist_ok=True)
    kept(order)
    again = start(order)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 2
    assert b"started before" in errors
    assert (read_outcome(order), trace.read_text()) == (Outcome(0), "x")


def test_a_runner_that_gave_an_attempt_up_keeps_a_late_keeper_from_starting_it(tmp_path):
    order = order_for(tmp_path, "print('ran')")
    assert take_attempt(order, with_room=False) is not None
    keeper = start(order)
    keeper.communicate(timeout=120)
    assert keeper.returncode == 2
    assert not order.output_file.exists()
    assert read_outcome(order) is None


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
    order = order_for(tmp_path, code)
    keeper = start(order)
    until(lambda: "alive" in said(order))
    for _ in range(5):
        keeper.terminate()
        until(lambda: "heard-1" in said(order))
        before = len(said(order))
        until(lambda before=before: len(said(order)) > before + 2)  # the keeper has come round
    (tmp_path / "go").touch()
    keeper.communicate(timeout=120)
    assert [word for word in said(order) if word != "alive"] == ["heard-1"]
    assert read_outcome(order).exit_code == 6


def test_the_stop_file_asks_as_a_signal_does(tmp_path):
    order = order_for(tmp_path, "import time; time.sleep(600)")
    keeper = start(order)
    until(lambda: order.outcome_file.exists())
    order.stop_file.touch()
    keeper.communicate(timeout=120)
    assert read_outcome(order).signal == signal.SIGTERM


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
    order, clock = order_for(tmp_path, FAMILY), Clock(tmp_path / "clock")
    keeper = clock.start(order)
    until(lambda: "ready" in said(order))
    until(lambda: len(descendants.carriers(MARKER, order.marker)) == 2)  # the keeper and the one with time to tidy up
    clock.advance(int(TIDY_SECONDS) + 1)
    assert concluded(order, keeper) == Outcome(0)


def test_the_trainer_ends_with_its_keeper(tmp_path):
    order = order_for(tmp_path, "import time; print('ready', flush=True); time.sleep(600)")
    keeper = start(order)
    until(lambda: "ready" in said(order))
    assert len(descendants.carriers(MARKER, order.marker)) == 2
    keeper.kill()
    keeper.communicate()
    until(lambda: not descendants.carriers(MARKER, order.marker))
    assert read_outcome(order) is None  # blanks
    assert order.outcome_file.read_bytes() == BLANK


def test_a_run_that_nobody_looks_after_ends_gently_then_by_force(tmp_path):
    code = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
for _ in range(600): time.sleep(1)
"""
    order, clock = order_for(tmp_path, code, leash_seconds=60.0, stop_seconds=30.0), Clock(tmp_path / "clock")
    keeper = clock.start(order)
    until(lambda: said(order) == ["ready"])
    clock.advance(61)
    until(lambda: "asked" in said(order))
    clock.advance(31)
    outcome = concluded(order, keeper)
    assert (outcome.signal, outcome.kind, outcome.oom_killed) == (signal.SIGKILL, "infra", False)
    assert "no dispatcher" in (outcome.message or "")
    assert said(order) == ["ready", "asked"]


def test_a_run_that_was_started_again_elsewhere_ends_at_once(tmp_path):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    order = order_for(tmp_path, code, stop_seconds=600.0)
    keeper = start(order)
    until(lambda: "ready" in said(order))
    write_order(replace(order, attempt=3))  # whose predecessor never got so far
    keeper.communicate(timeout=120)
    outcome = read_outcome(order)
    assert outcome is not None
    assert (outcome.signal, outcome.kind, outcome.oom_killed) == (signal.SIGKILL, "infra", False)
    assert outcome.message == "a later attempt was begun"


def test_the_trainer_yields_to_the_service(tmp_path):
    order = order_for(tmp_path, "import os; print(os.nice(0))")
    kept(order)
    assert int(order.output_file.read_text()) == min(os.nice(0) + 5, 19)


def test_a_run_on_its_leash_goes_on_whatever_the_clock_says(tmp_path):
    order = order_for(tmp_path, "", leash_seconds=5.0)
    keeper = Keeper(order, take_attempt(order))
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        now = time.monotonic()
        for tick in (7, 8, 3, 4, 5, 9):  # 1970, and not always later: another machine's clock
            order.leash_file.touch()
            os.utime(order.leash_file, (tick, tick))
            keeper._look_after(child, now)
            keeper._look_after(child, now + 4.9)
            now += 5.0
        assert (keeper._asked_at, keeper._killed, child.poll()) == (None, False, None)
        keeper._look_after(child, now + 0.1)  # longer than the leash since the last change
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
    order = order_for(tmp_path, f"import os; os.chdir({str(tmp_path)!r})\n{code}", memory_bytes=300_000_000)
    assert kept(order).exit_code == 4
    assert order.output_file.read_text().split() == ["within"]
    assert data_limit(300_000_000, 1) < 1_000_000_000


def test_torch_with_several_threads_works_within_the_limit_of_what_it_needs(tmp_path):
    code = """
import torch
torch.set_num_threads(8)
a = torch.randn(2000, 2000)
print(float((a @ a).sum()) != 0)
"""
    order = order_for(tmp_path, code, memory_bytes=300_000_000, cpus=8)
    assert kept(order, 240).exit_code == 0, order.output_file.read_text()


def test_a_flood_of_output_is_bounded_on_disk(tmp_path):
    order = order_for(tmp_path, "for _ in range(2_000): print('x' * 49_999)\nprint('the end')")
    assert kept(order) == Outcome(0)
    assert order.output_file.stat().st_size == 50_000_000


def test_a_full_disk_neither_stops_the_trainer_nor_loses_the_outcome(small_disk):
    code = "for _ in range(100): print('x' * 9_999)\nprint('the end'); raise SystemExit(5)"
    order = order_for(small_disk, code)
    outcome = kept(order)
    assert outcome.exit_code == 5
    assert (outcome.message or "").endswith("the end")
    assert os.statvfs(small_disk).f_bavail == 0


def test_no_room_for_an_outcome_means_no_start(small_disk):
    order = order_for(small_disk, "print('ran')")
    with contextlib.suppress(OSError):
        (small_disk / "filling").write_bytes(bytes(1_000_000))
    keeper = start(order)
    keeper.communicate(timeout=120)
    assert keeper.returncode == 1
    assert read_outcome(order) is None


def test_kernel_oom_counts_are_read_from_both_versions_of_control_groups(tmp_path):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    for folder in (proc / "self", cgroup / "a", cgroup / "memory" / "b"):
        folder.mkdir(parents=True)
    assert descendants.oom_kills(proc, cgroup) == 0
    (proc / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    (proc / "self" / "cgroup").write_text("4:memory:/b\n0::/a\n")
    (cgroup / "a" / "memory.events").write_text("oom 1\noom_kill 20\n")
    (cgroup / "memory" / "b" / "memory.oom_control").write_text("under_oom 0\noom_kill 100\n")
    assert descendants.oom_kills(proc, cgroup) == 123


def test_for_lack_of_memory_the_kernel_ends_the_trainer_first(tmp_path):
    order = order_for(tmp_path, "print(open('/proc/self/oom_score_adj').read())")
    kept(order)
    assert int(order.output_file.read_text()) == 500
    assert int(Path("/proc/self/oom_score_adj").read_text()) < 500
