"""A process that waits for a wish to stop gets it, whenever the signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Waits that are almost nothing but entering and leaving them, and a handler that runs again and again within.
CODE = """
import signal, threading, time
from trainer.process.stop_signals import Stop, on_signals
stop, heard = Stop(), []
on_signals(stop)
signal.signal(signal.SIGALRM, lambda *_: (heard.append(1), stop.set()))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while len(heard) < 2_000:
    stop.wait(1e-5)
    stop._wanted = False
print("done")
"""


def test_a_signal_that_comes_in_the_middle_of_a_wait_does_not_hang_it():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_of_the_signals_ends_the_wait(number):
    code = (
        "from trainer.process.stop_signals import *\ns = Stop(); on_signals(s); print(flush=True); print(s.wait(600))"
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
