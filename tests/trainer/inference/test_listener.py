"""The encoder on the network: who may talk to it, and what it opens."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.inference.encoders import TOKEN, EncoderProcess, alive, receive, send, until
from trainer.inference import frames
from trainer.inference.address import Address
from trainer.inference.listener import HELLO_BYTES, check

NOTHING = {"do": "nothing"}  # answered by the real worker without torch
LEFT = None


def framed(text: bytes) -> bytes:
    return frames.MAGIC + struct.pack("<I", len(text)) + text


def hello(**head: object) -> bytes:
    return b"".join(frames.encode({"do": "hello", **head}))


@pytest.mark.parametrize(
    "sent, why",
    [
        (hello(token=TOKEN[:-1] + "x"), "wrong token"),
        (hello(token=TOKEN + "x"), "wrong token"),
        (hello(token=""), "wrong token"),
        (framed(b'{"head": {"do": "hello", "token": "\\ud800"}, "arrays": []}'), "wrong token"),
        (hello(), "a hello with a token"),
        (hello(token=None), "a hello with a token"),
        (hello(token=[TOKEN]), "a hello with a token"),
        (b"".join(frames.encode({"do": "open", "directory": "/", "head": {}})), "a hello with a token"),
        (b"GET / HTTP/1.1\r\nHost: encoder\r\n\r\n", "no frame"),
        (framed(b"[" * HELLO_BYTES), "no frame"),
        (framed(b'{"head": {"do": "hello", "token": "%s"}, "arrays": [["x", "<i8", [9]]]}' % TOKEN.encode()), "hello"),
        (framed(b" " * (HELLO_BYTES + 1)), "at most 4096"),
        (frames.MAGIC + struct.pack("<I", 8 << 20) + b" " * 100_000, "at most 4096"),
        (frames.MAGIC + b"\xff\xff\xff\xff", "no frame"),
    ],
)
def test_a_peer_that_does_not_greet_is_told_why_and_costs_no_process(encoder, sent, why):
    with encoder.connect() as connection:
        connection.sendall(sent)
        told = receive(connection)
        assert told is not LEFT
        assert why in told["error"]["message"]
        assert (told["error"]["kind"], told["error"]["last"]) == ("infra", True)
        assert TOKEN not in str(told)
        assert receive(connection) is LEFT
    assert encoder.workers() == []
    check(Address("127.0.0.1", encoder.port), TOKEN)


def test_peers_that_say_nothing_or_little_are_sent_away(tmp_path):
    with EncoderProcess(tmp_path, worker="", hello_seconds=0.5) as encoder, encoder.connect() as silent:
        told = receive(silent)
        assert told is not LEFT
        assert "no hello within 0.5 seconds" in told["error"]["message"]
        assert receive(silent) is LEFT
        with encoder.connect() as slow:
            for byte in hello(token=TOKEN)[:-1]:  # never long without a byte, and never whole
                slow.sendall(bytes([byte]))
                if select.select([slow], [], [], 0.01)[0]:
                    break
            told = receive(slow)
            assert told is not LEFT
            assert "no hello within 0.5 seconds" in told["error"]["message"]
        assert encoder.workers() == []


def test_many_silent_peers_keep_nobody_else_out(encoder):
    with contextlib.ExitStack() as stack:
        for _ in range(300):  # more than there is room for
            stack.enter_context(encoder.connect())
        for _ in range(3):
            check(Address("127.0.0.1", encoder.port), TOKEN)
    assert encoder.workers() == []


def test_a_process_is_started_by_the_first_request_and_not_by_a_hello(encoder):
    with encoder.peer() as connection:
        check(Address("127.0.0.1", encoder.port), TOKEN)
        assert encoder.workers() == []
        send(connection, NOTHING)
        answer = receive(connection)
        assert answer is not LEFT
        assert answer["error"] == {
            "kind": "infra",
            "message": "cannot do 'nothing'; API and encoder are not of one version.",
        }
        (worker,) = encoder.workers()
        send(connection, NOTHING)
        assert receive(connection) == answer
        assert encoder.workers() == [worker]
        maps = Path(f"/proc/{encoder.process.pid}/maps").read_text()
        assert "python" in maps
        assert "libtorch" not in maps, "the listener has loaded torch"
        environ = Path(f"/proc/{worker}/environ").read_text()
        assert TOKEN not in environ
        assert "NML_HOME=" in environ
    until(lambda: not alive(worker))


def test_request_sent_together_with_the_hello_is_answered(encoder):
    with encoder.connect() as connection:
        connection.sendall(hello(token=TOKEN) + b"".join(frames.encode(NOTHING)))
        assert receive(connection) == {"ok": {}}
        answer = receive(connection)
        assert answer is not LEFT
        assert "cannot do" in answer["error"]["message"]


def test_only_versions_below_home_are_opened(tmp_path):
    home, outside = tmp_path / "home", tmp_path / "outside"
    for folder in (home / "embeddings", home / "embeddings-not", home / "runs", outside):
        folder.mkdir(parents=True)
    (home / "embeddings" / "link").symlink_to(outside)
    (home / "embeddings" / "circle").symlink_to("circle")
    inside = home / "embeddings"
    refused = [
        outside, "/", "", ".", "..", home, inside, home / "embeddings-not", home / "runs", inside / "..",
        inside / "link", inside / "link" / "x", inside / "v" / ".." / ".." / "runs", "embeddings/v",
        f"{inside}/v\0", inside / "circle",
        f"{inside}/{'x' * 5000}/../../../outside",
    ]  # fmt: skip
    with EncoderProcess(home) as encoder, encoder.peer() as connection:
        for folder in refused:
            for do in ("open", "embed", "classify"):
                send(connection, {"do": do, "directory": str(folder), "head": {"to": "classify"}})
                answer = receive(connection)
                assert answer is not LEFT
                assert answer["error"]["kind"] == "infra", (folder, answer)
                assert "not below NML_HOME/embeddings" in answer["error"]["message"]
        (worker,) = encoder.workers()
        assert "libtorch" not in Path(f"/proc/{worker}/maps").read_text()


def test_one_more_than_there_are_places_is_told_that_all_are_busy(tmp_path):
    with EncoderProcess(tmp_path, connections=1) as encoder:
        with encoder.peer() as first:
            send(first, NOTHING)
            assert receive(first) is not LEFT
            with encoder.peer() as second:
                send(second, NOTHING)
                told = receive(second)
                assert told is not LEFT
                assert "busy: 1 connections" in told["error"]["message"]
                assert (told["error"]["kind"], told["error"]["last"]) == ("infra", True)
                assert receive(second) is LEFT
            check(Address("127.0.0.1", encoder.port), TOKEN)  # it is well all the same
            send(first, NOTHING)
            assert receive(first) is not LEFT
        until(lambda: not encoder.workers())
        with encoder.peer() as third:
            send(third, NOTHING)
            answer = receive(third)
            assert answer is not LEFT
            assert "cannot do" in answer["error"]["message"]


def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "NML_ENCODER_TOKEN"} | variables
    command = [sys.executable, "-P", "-m", "trainer.inference", *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_check_tells_whether_the_encoder_takes_our_token(encoder):
    well = run(f"--check={encoder.address}", NML_ENCODER_TOKEN=TOKEN)
    assert (well.returncode, well.stdout, well.stderr) == (0, "", "")
    wrong = run(f"--check={encoder.address}", NML_ENCODER_TOKEN="x" * 20)
    assert (wrong.returncode, "refuses: wrong token" in wrong.stderr) == (1, True), wrong.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    nobody = run(f"--check=127.0.0.1:{port}", NML_ENCODER_TOKEN=TOKEN)
    assert (nobody.returncode, "does not answer" in nobody.stderr) == (1, True), nobody.stderr
    none = run(f"--check={encoder.address}")
    assert (none.returncode, "NML_ENCODER_TOKEN is not set" in none.stderr) == (1, True), none.stderr
    assert encoder.workers() == []


def test_it_does_not_start_without_a_good_token_or_address(encoder):
    none = run("--listen=127.0.0.1:0")
    assert (none.returncode, "NML_ENCODER_TOKEN is not set" in none.stderr) == (3, True), none.stderr
    short = run("--listen=127.0.0.1:0", NML_ENCODER_TOKEN="only-fifteen-ch")
    assert (short.returncode, "at least 16 characters, not 15" in short.stderr) == (3, True), short.stderr
    assert "only-fifteen-ch" not in short.stderr
    taken = run(f"--listen={encoder.address}", NML_ENCODER_TOKEN=TOKEN)
    assert (taken.returncode, "cannot listen" in taken.stderr) == (5, True), taken.stderr
    strange = run("--listen=8100", NML_ENCODER_TOKEN=TOKEN)
    assert (strange.returncode, "Write host:port" in strange.stderr) == (3, True), strange.stderr
