"""A process that waits for a wish to stop gets it, whenever the signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainer.process.stop_signals import SERVICE_SIGNALS, StopRequest

ROOT = Path(__file__).resolve().parents[3]
# Waits that are almost nothing but entering and leaving them, and a handler that runs again and again within.
CODE = """
import signal, threading, time
from trainer.process.stop_signals import StopRequest
stop, heard = StopRequest(on_repeat=lambda: None), []
stop.listen()
signal.signal(signal.SIGALRM, lambda *_: (heard.append(1), stop.set()))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while len(heard) < 2_000:
    stop.wait(1e-5)
    stop._is_set = False
print("done")
"""


def test_a_signal_that_comes_in_the_middle_of_a_wait_does_not_hang_it():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_of_the_signals_ends_the_wait(number):
    code = (
        "from trainer.process.stop_signals import SERVICE_SIGNALS, StopRequest\n"
        "with StopRequest(signals=SERVICE_SIGNALS) as stop: print(flush=True); print(stop.wait(600))"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    assert process.communicate(timeout=120)[0] == "True\n"


def test_a_second_signal_acts_as_it_would_without_us():
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert (stop.is_set(), heard) == (True, [])
            signal.raise_signal(signal.SIGTERM)
            assert heard == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_repeats_can_be_given_a_meaning_and_handlers_put_back_in_place():
    repeats: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(on_repeat=lambda: repeats.append("again")) as stop:
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("a library's handler"))
        stop.listen()
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
    assert (stop.is_set(), repeats) == (True, ["again", "again"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_sighup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest(signals=SERVICE_SIGNALS) as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_only_set_counts():
    found = []

    def use() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopRequest() as stop:
            found.append((stop.wait(0), signal.getsignal(signal.SIGTERM) is before))
            stop.set()
            found.append(stop.wait(600))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(60)
    assert found == [(False, True), True]
