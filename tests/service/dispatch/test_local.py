"""Local processes are known for certain, whoever started them and whatever became of their process ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from service.dispatch.local import LocalRunner
from service.dispatch.procfs import find_by_variable, started
from service.dispatch.runner import MARKER, Alive, Gone, Outcome, read_outcome, take_attempt
from tests.service.dispatch.conftest import until
from tests.service.dispatch.test_shim import launch_spec

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"


def child(*, own_session):
    command = f"[sys.executable, '-c', {SLEEP!r}]"
    return f"import subprocess, sys; subprocess.Popen({command}, start_new_session={own_session})\n"


def is_ready(launch):
    return launch.output_file.exists() and "ready" in launch.output_file.read_text()


def finished(runner, launch, reference):
    return until(lambda: not isinstance(found := runner.poll(launch, reference), Alive) and found)


def test_a_process_is_followed_from_start_to_outcome(tmp_path):
    runner, launch = LocalRunner(), launch_spec(tmp_path, "exit(3)")
    reference = runner.start(launch)
    assert reference == {**runner.intent(launch), "pid": reference["pid"], "started": reference["started"]}
    outcome = finished(runner, launch, reference)
    assert isinstance(outcome, Outcome)
    assert outcome.exit_code == 3
    assert runner.poll(launch, reference) == outcome  # also when asked again
    assert LocalRunner().poll(launch, None) == outcome  # by anyone


def test_it_leads_a_session_of_its_own(tmp_path):
    runner, launch = LocalRunner(), launch_spec(tmp_path, SLEEP)
    reference = runner.start(launch)
    until(lambda: is_ready(launch))
    assert {os.getsid(process) for process in find_by_variable(MARKER, launch.marker)} == {reference["pid"]}
    runner.stop(launch, reference, force=True)


def test_another_runner_finds_it_with_and_without_a_reference(tmp_path):
    first, launch = LocalRunner(), launch_spec(tmp_path, SLEEP)
    reference = first.start(launch)
    until(lambda: is_ready(launch))
    for known in (reference, first.intent(launch), None):
        other = LocalRunner()
        assert isinstance(other.poll(launch, known), Alive)
        assert isinstance(other.poll(launch, known), Alive)
    other.stop(launch, None, force=False)
    outcome = finished(other, launch, None)
    assert isinstance(outcome, Outcome)
    assert outcome.signal == signal.SIGTERM
    first.poll(launch, reference)


def test_a_process_id_that_was_given_to_another_process_is_not_ours(tmp_path):
    launch = launch_spec(tmp_path, SLEEP)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for since in (started(stranger.pid), 1, None):
        reference = {"kind": "local", "host": "h", "pid": stranger.pid, "started": since}
        runner = LocalRunner()
        runner.stop(launch, reference, force=False)
        runner.stop(launch, reference, force=True)
        assert isinstance(runner.poll(launch, reference), Gone)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_one_that_was_never_started_is_gone_and_will_not_start(tmp_path):
    runner, launch = LocalRunner(), launch_spec(tmp_path, "print('ran')")
    assert isinstance(runner.poll(launch, runner.intent(launch)), Gone)
    assert take_attempt(launch) is None
    late = LocalRunner()
    gone = finished(late, launch, late.start(launch))
    assert isinstance(gone, Gone)
    assert "ran" not in launch.output_file.read_text()


def test_a_killed_shim_is_gone_only_when_nothing_of_its_family_runs(tmp_path):
    code = child(own_session=False) + child(own_session=True) + SLEEP
    runner, launch = LocalRunner(), launch_spec(tmp_path, code)
    reference = runner.start(launch)
    until(lambda: launch.output_file.exists() and launch.output_file.read_text().count("ready") == 3)
    os.kill(reference["pid"], signal.SIGKILL)
    assert isinstance(finished(runner, launch, reference), Gone)
    assert not find_by_variable(MARKER, launch.marker)
    assert read_outcome(launch) is None


def test_force_ends_all_at_once(tmp_path):
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + child(own_session=True) + SLEEP
    runner, launch = LocalRunner(), launch_spec(tmp_path, code)
    reference = runner.start(launch)
    until(lambda: launch.output_file.exists() and launch.output_file.read_text().count("ready") == 2)
    runner.stop(launch, reference, force=True)
    end = finished(runner, launch, reference)
    # the shim may have been the last to go, and have seen its trainer go
    assert isinstance(end, Gone) or end.signal == signal.SIGKILL
    assert not find_by_variable(MARKER, launch.marker)


def test_what_a_shim_says_that_cannot_begin_is_in_the_output(tmp_path):
    runner, launch = LocalRunner(python=sys.executable), launch_spec(tmp_path, "pass")
    launch.launch_file.write_text("{")
    gone = finished(runner, launch, runner.start(launch))
    assert isinstance(gone, Gone)
    assert "Error" in launch.output_file.read_text()
