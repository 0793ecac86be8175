"""Nothing that a client or a worker does ends the server; no worker outlives its question's client or the server."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.encoder.messages import pack
from tests.service.encoder.servers import FAKE, EncoderServer, alive, request_head, until

LONG = pack({"sleep": 1000}, {})


def test_a_killed_worker_costs_its_own_question_alone(tmp_path):
    with EncoderServer(tmp_path, worker=FAKE) as server, ThreadPoolExecutor() as threads:
        long = threads.submit(server.post, message=LONG)
        (first,) = until(server.workers)
        other = threads.submit(server.post, message=pack({"sleep": 3, "n": 7}, {}))
        until(lambda: len(server.workers()) == 2)
        os.kill(first, signal.SIGKILL)
        answer = long.result(120)
        assert (answer.status_code, "died" in answer.json()["detail"]) == (503, True)
        assert other.result(120).status_code == 200
        assert server.post(message=pack({}, {})).status_code == 200


def reset(connection: socket.socket) -> None:
    """Close it without the usual farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset, lambda each: each.shutdown(socket.SHUT_WR)])
def test_a_worker_ends_with_its_client_in_the_middle_of_a_computation(tmp_path, leave):
    with EncoderServer(tmp_path, worker=FAKE) as server, server.connect() as connection:
        connection.sendall(request_head(length=len(LONG)) + LONG)
        (worker,) = until(server.workers)
        time.sleep(2)  # it computes
        assert alive(worker)
        leave(connection)
        until(lambda: not alive(worker))
        assert server.post(message=pack({}, {})).status_code == 200


def test_a_worker_ends_with_a_client_that_is_killed(tmp_path):
    code = (
        "import socket, sys, time\n"
        "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "peer.sendall(bytes.fromhex(sys.argv[2])); print('sent', flush=True); time.sleep(1000)\n"
    )
    with EncoderServer(tmp_path, worker=FAKE) as server:
        sent = (request_head(length=len(LONG)) + LONG).hex()
        command = [sys.executable, "-c", code, str(server.port), sent]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "sent\n"
            (worker,) = until(server.workers)
            time.sleep(2)
            assert alive(worker)
            client.kill()
        until(lambda: not alive(worker))


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_workers_end_with_the_server_whose_port_can_be_taken_again(tmp_path, number, code):
    server = EncoderServer(tmp_path, worker=FAKE)
    with server, server.connect() as idle, server.connect() as first, server.connect() as second:
        for connection in (first, second):
            connection.sendall(request_head(length=len(LONG)) + LONG)
        workers = until(lambda: found if len(found := server.workers()) == 2 else None)
        assert server.end(number) == code
        until(lambda: not any(alive(worker) for worker in workers))
        for connection in (idle, first, second):
            assert until(lambda connection=connection: ended(connection))
    with EncoderServer(tmp_path, port=server.port, worker=FAKE) as again:
        assert again.post(message=pack({}, {})).status_code == 200


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


def test_an_idle_worker_ends_and_the_server_stays(tmp_path):
    with EncoderServer(tmp_path, worker=FAKE) as server:
        assert server.post(message=pack({}, {}), idle_seconds=0.5).status_code == 200
        until(lambda: not server.workers())
        assert server.post(message=pack({}, {})).status_code == 200
