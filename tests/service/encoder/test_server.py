"""The encoder server: who may ask it, what it opens, and its command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.encoder import app
from service.encoder.messages import Question
from tests.service.encoder.servers import TOKEN, EncoderServer, request_head, until


@pytest.mark.parametrize(
    "header",
    [None, "", TOKEN, "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"bearer {TOKEN}",
     f"Basic {TOKEN}", f"Bearer {TOKEN} {TOKEN}", "Bearer \xff"],
)  # fmt: skip
def test_a_client_without_the_token_is_told_so_and_starts_no_process(server, header):
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for method, path in (("GET", "/health"), ("POST", "/embed?version=nothing&seconds=1&idle_seconds=1")):
        answer = httpx.request(method, f"http://{server.address}{path}", headers=headers, timeout=120)
        assert (answer.status_code, "wrong token" in answer.json()["detail"]) == (401, True)
        assert TOKEN not in answer.text
    assert server.workers() == []


def test_a_client_without_the_token_is_answered_before_it_has_sent_its_body(server):
    with server.connect() as connection:
        connection.sendall(request_head(length=1 << 30, token="x" * 20))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("sent", [b"this is not HTTP\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000])
def test_what_is_not_http_or_has_no_end_of_headers_is_sent_away(server, sent):
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        assert connection.recv(1 << 16).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
        assert until(lambda: connection.recv(1 << 16) == b"")
    assert server.workers() == []


def test_clients_that_say_nothing_or_little_are_sent_away(tmp_path):
    with EncoderServer(tmp_path, worker="", head_seconds=0.5) as server:
        with server.connect() as silent:
            assert silent.recv(1 << 16) == b""
        with server.connect() as slow, contextlib.suppress(ConnectionError):
            for byte in request_head()[:-1]:  # never long without a byte, and never whole
                slow.sendall(bytes([byte]))
                if select.select([slow], [], [], 0.02)[0]:
                    break
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
        assert server.workers() == []


def test_many_silent_clients_keep_nobody_else_out(server):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(server.connect())
        for _ in range(3):
            assert run(f"--check={server.address}", NML_ENCODER_TOKEN=TOKEN).returncode == 0
    assert server.workers() == []


def test_a_process_is_started_by_the_first_question_and_knows_no_token(server):
    assert run(f"--check={server.address}", NML_ENCODER_TOKEN=TOKEN).returncode == 0
    assert server.workers() == []
    assert server.post().status_code == 503
    (worker,) = server.workers()
    assert server.post().status_code == 503
    assert server.workers() == [worker]
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "python" in maps
    assert "libtorch" not in maps, "the server has loaded torch"
    environ = Path(f"/proc/{worker}/environ").read_text()
    assert TOKEN not in environ
    assert "NML_HOME=" in environ


@pytest.mark.parametrize(
    "operation, params",
    [("nothing", {}), ("embed", {"seconds": "soon"}), ("embed", {"seconds": 0}), ("embed", {"seconds": "inf"}),
     ("embed", {"idle_seconds": "nan"})],
)  # fmt: skip
def test_a_question_of_another_version_of_the_api_is_refused(server, operation, params):
    assert server.post(operation, **params).status_code == 422
    assert server.workers() == []


def test_only_versions_in_home_are_opened(tmp_path):
    home, outside = tmp_path / "home", tmp_path / "outside"
    inside = home / "embeddings"
    for folder in (inside / "version" / "part", home / "embeddings-not", home / "runs", outside):
        folder.mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (inside / "circle").symlink_to("circle")
    refused = [
        outside, "/", "", ".", "..", home, inside, "../embeddings-not", "../runs", "link", "link/x", "version/..",
        "version/part", "version/../../runs", "nothing", "version\0", "circle", "x" * 5000,
        f"{'x' * 5000}/../../../outside",
    ]  # fmt: skip
    with EncoderServer(home) as server:
        for folder in refused:
            for operation in ("embed", "classify"):
                answer = server.post(operation, version=str(folder))
                assert answer.status_code == 503, (folder, answer.text)
                assert "not in NML_HOME/embeddings" in answer.json()["detail"]
        (worker,) = server.workers()
        assert "libtorch" not in Path(f"/proc/{worker}/maps").read_text()


def test_a_body_that_does_not_arrive_or_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(app, "MAX_QUESTION_BYTES", 1_000)
    monkeypatch.setattr(app, "BODY_SECONDS", 0.2)

    async def answer(_: Question) -> bytes:
        raise AssertionError

    async def slowly():
        yield b"x"
        await asyncio.sleep(100)

    async def post(content) -> httpx.Response:
        transport = httpx.ASGITransport(app.create_app(answer))
        async with httpx.AsyncClient(transport=transport, base_url="http://encoder") as client:
            return await client.post("/embed?version=v&seconds=1&idle_seconds=1", content=content)

    large = asyncio.run(post(b" " * 1_001))
    assert (large.status_code, "more than 1,000 bytes" in large.text) == (422, True)
    late = asyncio.run(post(slowly()))
    assert (late.status_code, "did not arrive within 0.2 seconds" in late.text) == (504, True)


def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "NML_ENCODER_TOKEN"} | variables
    command = [sys.executable, "-P", "-m", "service.encoder", *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_check_tells_whether_the_server_takes_our_token(server):
    well = run(f"--check={server.address}", NML_ENCODER_TOKEN=TOKEN)
    assert (well.returncode, well.stdout, well.stderr) == (0, "", "")
    wrong = run(f"--check={server.address}", NML_ENCODER_TOKEN="x" * 20)
    assert (wrong.returncode, "wrong token" in wrong.stderr) == (1, True), wrong.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    nobody = run(f"--check=127.0.0.1:{port}", NML_ENCODER_TOKEN=TOKEN)
    assert (nobody.returncode, "cannot be reached" in nobody.stderr) == (1, True), nobody.stderr
    none = run(f"--check={server.address}")
    assert (none.returncode, "NML_ENCODER_TOKEN is not set" in none.stderr) == (1, True), none.stderr
    assert server.workers() == []


def test_it_does_not_start_without_a_good_token_or_address(server):
    none = run("--listen=127.0.0.1:0")
    assert (none.returncode, "NML_ENCODER_TOKEN is not set" in none.stderr) == (3, True), none.stderr
    short = run("--listen=127.0.0.1:0", NML_ENCODER_TOKEN="only-fifteen-ch")
    assert (short.returncode, "at least 16 characters, not 15" in short.stderr) == (3, True), short.stderr
    assert "only-fifteen-ch" not in short.stderr
    taken = run(f"--listen={server.address}", NML_ENCODER_TOKEN=TOKEN)
    assert (taken.returncode, "cannot listen" in taken.stderr) == (5, True), taken.stderr
    strange = run("--listen=8100", NML_ENCODER_TOKEN=TOKEN)
    assert (strange.returncode, "Write host:port" in strange.stderr) == (3, True), strange.stderr
