"""Local processes are known for certain, whoever started them and whatever became of their process ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from service.dispatch.descendants import carriers, started
from service.dispatch.local import LocalRunner
from service.dispatch.runner import MARKER, Alive, Gone, Outcome, read_outcome, take_attempt
from tests.service.dispatch.conftest import until
from tests.service.dispatch.test_keeper import order_for

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"


def child(*, own_session):
    command = f"[sys.executable, '-c', {SLEEP!r}]"
    return f"import subprocess, sys; subprocess.Popen({command}, start_new_session={own_session})\n"


def is_ready(order):
    return order.output_file.exists() and "ready" in order.output_file.read_text()


def finished(runner, order, reference):
    return until(lambda: not isinstance(found := runner.poll(order, reference), Alive) and found)


def test_a_process_is_followed_from_start_to_outcome(tmp_path):
    runner, order = LocalRunner(), order_for(tmp_path, "exit(3)")
    reference = runner.start(order)
    assert reference == {**runner.intent(order), "pid": reference["pid"], "started": reference["started"]}
    outcome = finished(runner, order, reference)
    assert isinstance(outcome, Outcome)
    assert outcome.exit_code == 3
    assert runner.poll(order, reference) == outcome  # also when asked again
    assert LocalRunner().poll(order, None) == outcome  # by anyone


def test_it_leads_a_session_of_its_own(tmp_path):
    runner, order = LocalRunner(), order_for(tmp_path, SLEEP)
    reference = runner.start(order)
    until(lambda: is_ready(order))
    assert {os.getsid(process) for process in carriers(MARKER, order.marker)} == {reference["pid"]}
    runner.stop(order, reference, force=True)


def test_another_runner_finds_it_with_and_without_a_reference(tmp_path):
    first, order = LocalRunner(), order_for(tmp_path, SLEEP)
    reference = first.start(order)
    until(lambda: is_ready(order))
    for known in (reference, first.intent(order), None):
        other = LocalRunner()
        assert isinstance(other.poll(order, known), Alive)
        assert isinstance(other.poll(order, known), Alive)
    other.stop(order, None, force=False)
    outcome = finished(other, order, None)
    assert isinstance(outcome, Outcome)
    assert outcome.signal == signal.SIGTERM
    first.poll(order, reference)


def test_a_process_id_that_was_given_to_another_process_is_not_ours(tmp_path):
    order = order_for(tmp_path, SLEEP)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for since in (started(stranger.pid), 1, None):
        reference = {"kind": "local", "host": "h", "pid": stranger.pid, "started": since}
        runner = LocalRunner()
        runner.stop(order, reference, force=False)
        runner.stop(order, reference, force=True)
        assert isinstance(runner.poll(order, reference), Gone)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_one_that_was_never_started_is_gone_and_will_not_start(tmp_path):
    runner, order = LocalRunner(), order_for(tmp_path, "print('ran')")
    assert isinstance(runner.poll(order, runner.intent(order)), Gone)
    assert take_attempt(order) is None
    late = LocalRunner()
    gone = finished(late, order, late.start(order))
    assert isinstance(gone, Gone)
    assert "ran" not in order.output_file.read_text()


def test_a_killed_keeper_is_gone_only_when_nothing_of_its_family_runs(tmp_path):
    code = child(own_session=False) + child(own_session=True) + SLEEP
    runner, order = LocalRunner(), order_for(tmp_path, code)
    reference = runner.start(order)
    until(lambda: order.output_file.exists() and order.output_file.read_text().count("ready") == 3)
    os.kill(reference["pid"], signal.SIGKILL)
    assert isinstance(finished(runner, order, reference), Gone)
    assert not carriers(MARKER, order.marker)
    assert read_outcome(order) is None


def test_force_ends_all_at_once(tmp_path):
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + child(own_session=True) + SLEEP
    runner, order = LocalRunner(), order_for(tmp_path, code)
    reference = runner.start(order)
    until(lambda: order.output_file.exists() and order.output_file.read_text().count("ready") == 2)
    runner.stop(order, reference, force=True)
    end = finished(runner, order, reference)
    # the keeper may have been the last to go, and have seen its trainer go
    assert isinstance(end, Gone) or end.signal == signal.SIGKILL
    assert not carriers(MARKER, order.marker)


def test_what_a_keeper_says_that_cannot_begin_is_in_the_output(tmp_path):
    runner, order = LocalRunner(python=sys.executable), order_for(tmp_path, "pass")
    order.order_file.write_text("{")
    gone = finished(runner, order, runner.start(order))
    assert isinstance(gone, Gone)
    assert "Error" in order.output_file.read_text()
