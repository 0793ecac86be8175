"""Nothing that a peer or a worker does ends the listener; no worker outlives its peer or the listener."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.inference.encoders import EncoderProcess, alive, exactly, keeps_alive, receive, reset, send, until

SLOW = (
    "import sys, time; from trainer.inference import __main__ as m; "
    "m._answer = lambda *a: time.sleep(1000); sys.exit(m.main())"
)
NOTHING = {"do": "nothing"}  # answered by the real worker without torch
LEFT = None


def test_a_killed_or_broken_worker_costs_its_own_peer_alone(encoder):
    with encoder.peer() as first, encoder.peer() as other:
        for connection in (first, other):
            send(connection, NOTHING)
            assert receive(connection) is not LEFT
        workers = encoder.workers()
        assert len(workers) == 2
        first.sendall(b"this is no frame")
        assert receive(first) is LEFT
        left = until(lambda: found[0] if len(found := [pid for pid in workers if alive(pid)]) == 1 else None)
        send(other, NOTHING)
        assert receive(other) is not LEFT
        os.kill(left, signal.SIGKILL)
        assert receive(other) is LEFT
    with encoder.peer() as connection:
        send(connection, NOTHING)
        assert receive(connection) is not LEFT


@pytest.mark.parametrize("leave", [socket.socket.close, reset, lambda each: each.shutdown(socket.SHUT_WR)])
def test_a_worker_ends_with_its_peer_in_the_middle_of_a_computation(tmp_path, leave):
    with EncoderProcess(tmp_path, worker=SLOW) as encoder, encoder.peer() as connection:
        send(connection, NOTHING)
        (worker,) = until(encoder.workers)
        time.sleep(0.5)  # it computes
        assert alive(worker)
        leave(connection)
        until(lambda: not alive(worker))


def test_a_worker_ends_with_a_peer_that_is_killed(tmp_path):
    code = (
        "import sys, time; sys.path[:0] = sys.argv[2:]\n"
        "from tests.trainer.inference.encoders import EncoderProcess, send\n"
        "encoder = EncoderProcess.__new__(EncoderProcess); encoder.port = int(sys.argv[1]); peer = encoder.peer()\n"
        "send(peer, {'do': 'nothing'}); print('sent', flush=True); time.sleep(1000)\n"
    )
    with EncoderProcess(tmp_path, worker=SLOW) as encoder:
        root = str(Path(__file__).resolve().parents[3])
        command = [sys.executable, "-P", "-c", code, str(encoder.port), root]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdout is not None
            assert peer.stdout.readline() == "sent\n"
            (worker,) = until(encoder.workers)
            time.sleep(0.5)
            assert alive(worker)
            peer.kill()
        until(lambda: not alive(worker))


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_workers_end_with_the_listener_whose_port_can_be_taken_again(tmp_path, number, code):
    encoder = EncoderProcess(tmp_path, worker=SLOW)
    with encoder, encoder.peer() as idle, encoder.peer() as first, encoder.peer() as second:
        for connection in (first, second):
            send(connection, NOTHING)
        workers = until(lambda: found if len(found := encoder.workers()) == 2 else None)
        assert encoder.end(number) == code
        until(lambda: not any(alive(worker) for worker in workers))
        for connection in (idle, first, second):
            assert exactly(connection, 1) is None
    with EncoderProcess(tmp_path, port=encoder.port) as again, again.peer() as connection:
        send(connection, NOTHING)
        assert receive(connection) is not LEFT


def test_a_peer_that_vanishes_is_noticed_by_the_kernel(encoder):
    """Whose cable is cut cannot be tried on one machine; that the kernel will ask for the peer can be seen."""
    with encoder.peer() as connection:
        local = connection.getsockname()[1]
        until(lambda: keeps_alive(encoder.port, local))
        assert keeps_alive(local, encoder.port) is not True
        send(connection, NOTHING)
        assert receive(connection) is not LEFT
        until(lambda: keeps_alive(encoder.port, local))  # the process has it now
