"""Asking a process of our own or an encoder server: no question spoils the next, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import stat
import sys
import tempfile
import textwrap
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.encoder.client import MAX_WAITING
from tests.service.encoder.servers import FAKE, TOKEN, EncoderServer, alive, ask, gone, run, until
from trainer.errors import Infrastructure, InvalidInput


@pytest.fixture(autouse=True)
def sockets(monkeypatch):
    """The folders with sockets of the encoder processes of a test."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # a short name: that of a socket has 107 bytes at most
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder).iterdir


@pytest.fixture(params=["process", "server"])
def fake(request, tmp_path):
    """Options of an EncoderClient that asks such a worker: its own, or a server's."""
    if request.param == "process":
        yield {"command": (sys.executable, "-P", "-c", FAKE)}
        return
    with EncoderServer(tmp_path, worker=FAKE) as server:
        yield {"server": server, "command": ("no such program",)}


def test_a_question_that_kills_the_process_is_not_repeated_and_the_next_gets_a_new_one(tmp_path, fake):
    async def steps(client):
        first = (await ask(client))["pid"]
        with pytest.raises(Infrastructure, match="died"):
            await ask(client, die=1)
        second = await ask(client, n=7)
        assert second["n"] == 7
        assert second["pid"] != first

    run(tmp_path, steps, **fake)


def test_a_process_that_does_not_speak_http_is_replaced(tmp_path):
    code = (
        "import os, socket, sys; listening = socket.socket(fileno=int(sys.argv[-1][5:]))\n"
        "while True:\n    peer = listening.accept()[0]; peer.recv(1); peer.sendall(b'%d\\r\\n\\r\\n' % os.getpid())"
    )

    async def steps(client):
        for _ in range(2):
            with pytest.raises(Infrastructure, match="died") as failure:
                await ask(client)
            await gone(int(re.search(r"\d+", str(failure.value.__cause__))[0]))

    run(tmp_path, steps, command=(sys.executable, "-c", code))


@pytest.mark.parametrize("odd", range(5))
def test_an_unexpected_answer_costs_only_its_own_question(tmp_path, fake, odd):
    """As another version of the encoder may give it."""

    async def steps(client):
        with pytest.raises(Infrastructure, match="unexpected answer"):
            await client.embed("nowhere", {"nodes": 1, "odd": odd}, {})
        assert (await ask(client, n=1))["n"] == 1

    run(tmp_path, steps, **fake)


def test_a_child_killed_while_idle_is_replaced(tmp_path, fake):
    async def steps(client):
        first = (await ask(client))["pid"]
        os.kill(first, signal.SIGKILL)
        await gone(first)
        await asyncio.sleep(0.2)  # until its parent knows
        assert (await ask(client))["pid"] != first

    run(tmp_path, steps, **fake)


def test_a_question_that_takes_too_long_is_ended_with_its_process(tmp_path, fake):
    async def steps(client):
        first = (await ask(client))["pid"]
        client._seconds = 2
        with pytest.raises(TimeoutError, match="no answer within 2 seconds"):
            await ask(client, sleep=100)
        client._seconds = 120
        assert (await ask(client, n=3))["n"] == 3
        await gone(first)

    run(tmp_path, steps, **fake)


def test_opening_a_version_may_take_longer_than_an_answer(tmp_path, fake):
    async def steps(client):
        assert (await ask(client, version="takes2", n=1))["n"] == 1

    run(tmp_path, steps, seconds=1.5, **fake)


def test_opening_a_version_has_a_limit_of_its_own(tmp_path, monkeypatch):
    async def steps(client):
        monkeypatch.setattr("service.encoder.process.OPENING_SECONDS", 0.5)
        with pytest.raises(TimeoutError, match=r"could not be opened within 0\.5 seconds"):
            await ask(client, version="takes100")
        monkeypatch.setattr("service.encoder.process.OPENING_SECONDS", 600)
        assert (await ask(client, n=3))["n"] == 3

    run(tmp_path, steps, command=(sys.executable, "-P", "-c", FAKE))


def test_a_question_cancelled_within_a_large_answer_leaves_nothing_behind(tmp_path, sockets, fake, monkeypatch):
    arrived, aiter_raw = asyncio.Event(), httpx.Response.aiter_raw

    async def watched(response):
        size = 0
        async for part in aiter_raw(response):
            size += len(part)
            if size > 5_000_000:
                arrived.set()
            yield part

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    async def steps(client):
        await ask(client)
        before = open_files()
        monkeypatch.setattr(httpx.Response, "aiter_raw", watched)
        for _ in range(3):
            arrived.clear()
            asked = asyncio.create_task(client.embed("nowhere", {"pour": 20_000_000}, {}))
            await arrived.wait()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await ask(client)
        await asyncio.to_thread(until, lambda: open_files() <= before and len(list(sockets())) <= 1)

    run(tmp_path, steps, **fake)


def test_a_cancelled_request_leaves_no_answer_to_the_next(tmp_path, fake):
    async def steps(client):
        await ask(client)
        for wait in (0, 0.05, 0.2):
            cancelled = asyncio.create_task(ask(client, sleep=0.1, n="cancelled"))
            waiting = asyncio.create_task(ask(client, n="waiting"))
            gone = asyncio.create_task(ask(client, n="gone while waiting"))
            await asyncio.sleep(wait)
            cancelled.cancel()
            gone.cancel()
            assert (await waiting)["n"] == "waiting"
            for task in (cancelled, gone):
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            assert (await ask(client, n="next"))["n"] == "next"

    run(tmp_path, steps, **fake)


def test_more_than_a_few_waiting_are_told_to_come_later(tmp_path, fake):
    async def steps(client):
        tasks = [asyncio.create_task(ask(client, sleep=0.5, n=0))]
        tasks += [asyncio.create_task(ask(client, n=n)) for n in range(1, MAX_WAITING + 4)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [answer["n"] for answer in answers[: MAX_WAITING + 1]] == list(range(MAX_WAITING + 1))
        assert all(isinstance(answer, Infrastructure) for answer in answers[MAX_WAITING + 1 :])
        assert "busy" in str(answers[-1])
        assert (await ask(client, n=1))["n"] == 1

    run(tmp_path, steps, **fake)


def test_an_idle_child_ends_and_comes_back(tmp_path, fake):
    async def steps(client):
        first = (await ask(client))["pid"]
        await gone(first)
        assert (await ask(client))["pid"] != first

    run(tmp_path, steps, idle_seconds=0.2, **fake)


def test_the_child_is_told_no_secret(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("NML_DATABASE_URL", "postgresql://u:secret@h/d")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    monkeypatch.setenv("NML_ENCODER_TOKEN", TOKEN)

    async def steps(client):
        environ = (await ask(client))["environ"]
        assert "NML_HOME" in environ
        assert not {"NML_DATABASE_URL", "MLFLOW_TRACKING_PASSWORD", "NML_ENCODER_TOKEN"} & set(environ)

    run(tmp_path, steps, **fake)


def test_closing_ends_the_child_and_whoever_waits_for_it(tmp_path, fake):
    async def steps(client):
        first = (await ask(client))["pid"]
        asked = [asyncio.create_task(ask(client, sleep=100)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await client.close()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, Infrastructure) for answer in answers)
        await gone(first)
        with pytest.raises(Infrastructure, match="stopping"):
            await ask(client)

    run(tmp_path, steps, **fake)


def test_what_cannot_be_started_or_sent_is_said(tmp_path, sockets):
    async def steps(client):
        with pytest.raises(Infrastructure, match="cannot start"):
            await ask(client)
        with pytest.raises(InvalidInput, match="cannot be sent"):
            await client.embed("nowhere", {"nodes": 1}, {"features": np.array([None])})

    run(tmp_path, steps, command=(str(tmp_path / "no such program"),))
    assert not list(sockets())


def test_only_we_may_reach_the_socket_which_goes_with_its_process(tmp_path, sockets):
    async def steps(client):
        await ask(client)
        (folder,) = sockets()
        (file,) = folder.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    run(tmp_path, steps, command=(sys.executable, "-P", "-c", FAKE))
    assert not list(sockets())


def test_without_torch_the_remedy_is_told(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('No module named torch')")
    (tmp_path / "embeddings" / "version").mkdir(parents=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from service.encoder.__main__ import main; main()"

    async def steps(client):
        for _ in range(2):
            with pytest.raises(Infrastructure, match=r"nml-gcl\[train\]'.*NML_ENCODER_ADDRESS"):
                await client.embed("version", {"nodes": 1}, {"features": np.zeros((1, 1))})

    run(tmp_path, steps, command=(sys.executable, "-P", "-c", code))


def test_the_process_dies_with_a_parent_that_is_killed_and_removes_its_socket(tmp_path, sockets):
    """The parent is killed while the process computes."""
    code = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from service.encoder.client import EncoderClient
        async def main():
            client = EncoderClient(Path({str(tmp_path)!r}), command=(sys.executable, "-P", "-c", sys.argv[1]))
            asyncio.create_task(client.embed("takes100", {{}}, {{}}))
            while client._encoder._running is None:
                await asyncio.sleep(0.01)
            print(client._encoder._running.process.pid, flush=True)
            await asyncio.sleep(100)
        asyncio.run(main())
    """)

    async def whole():
        command = (sys.executable, "-c", code, FAKE)
        parent = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        child = int(await parent.stdout.readline())
        await asyncio.sleep(2)
        assert alive(child)
        parent.kill()
        await parent.wait()
        await gone(child)
        assert not list(sockets())

    asyncio.run(asyncio.wait_for(whole(), 120))
