"""Asking a child process or an encoder elsewhere: no request spoils the next, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from service.inference import MOST_WAITING
from service.settings import Settings
from tests.service.inferences import FAKE, answered_within, ask, gone, run
from tests.trainer.inference.encoders import TOKEN, EncoderProcess
from trainer.errors import Infrastructure, InvalidInput


@pytest.fixture(params=["child", "encoder"])
def fake(request, tmp_path):
    """Options of an Inference whose peer does that: a child, or an encoder's."""
    if request.param == "child":
        yield {"command": (sys.executable, "-P", "-c", FAKE)}
        return
    with EncoderProcess(tmp_path, worker=FAKE) as encoder:
        yield {"encoder": encoder, "command": ("no such program",)}


@pytest.mark.parametrize("fault", ["die", "babble"])
def test_a_request_that_kills_the_child_is_not_repeated_and_the_next_gets_a_new_one(tmp_path, fake, fault):
    async def steps(inference):
        first = (await ask(inference))["pid"]
        with pytest.raises(Infrastructure, match=r"died|broke off"):
            await ask(inference, **{fault: 1})
        second = await ask(inference, n=7)
        assert second["n"] == 7
        assert second["pid"] != first

    run(Settings(home=tmp_path), steps, **fake)


@pytest.mark.parametrize("odd", range(7))
def test_an_answer_that_is_none_is_no_error_of_ours_and_its_peer_is_left(tmp_path, fake, odd):
    """As another version of the encoder may give it."""

    async def steps(inference):
        first = (await ask(inference))["pid"]
        with pytest.raises(Infrastructure, match=r"died|broke off"):
            await inference.embed(Path("/nowhere"), {"nodes": 1, "odd": odd}, {})
        assert (await ask(inference))["pid"] != first

    run(Settings(home=tmp_path), steps, **fake)


def test_a_child_killed_while_idle_is_replaced(tmp_path, fake):
    async def steps(inference):
        first = (await ask(inference))["pid"]
        os.kill(first, signal.SIGKILL)
        while not inference._peer.gone:
            await asyncio.sleep(0.02)
        assert (await ask(inference))["pid"] != first

    run(Settings(home=tmp_path), steps, **fake)


def test_a_request_that_takes_too_long_is_ended_with_its_child(tmp_path, fake):
    async def steps(inference):
        first = (await ask(inference))["pid"]
        with answered_within(inference, 2), pytest.raises(TimeoutError, match="no answer within 2 seconds"):
            await ask(inference, sleep=100)
        assert (await ask(inference, n=3))["n"] == 3
        await gone(first)

    run(Settings(home=tmp_path), steps, **fake)


def test_opening_a_version_may_take_longer_than_an_answer(tmp_path, fake, monkeypatch):
    async def steps(inference):
        with contextlib.ExitStack() as opening:
            opening.enter_context(answered_within(inference, 0.5))
            asyncio.get_running_loop().call_later(1, opening.close)  # the answer after it has all the time it needs
            told = await inference.classify(Path("/takes2"), {"n": 1}, {})
        assert told["n"] == 1
        monkeypatch.setattr("service.inference.OPENING_SECONDS", 0.5)
        with pytest.raises(TimeoutError, match=r"could not be opened within 0\.5 seconds"):
            await inference.classify(Path("/takes100"), {"n": 2}, {})
        monkeypatch.setattr("service.inference.OPENING_SECONDS", 600)
        assert (await ask(inference, n=3))["n"] == 3

    run(Settings(home=tmp_path), steps, **fake)


def test_a_request_cancelled_in_the_middle_of_a_large_answer_leaves_nothing_behind(tmp_path, fake, monkeypatch):
    """Its child ends by itself: `wait` would not return while the pipe is neither read nor closed."""
    monkeypatch.setattr("service.peers._END_SECONDS", 60)

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    async def steps(inference):
        await ask(inference)
        before = open_files()
        for _ in range(3):
            asked = asyncio.create_task(inference.embed(tmp_path, {"pour": 200_000_000}, {}))
            while inference._peer is None or len(inference._peer.reader._buffer) < 20_000_000:
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await asyncio.wait_for(asyncio.gather(*inference._ending), 50)  # less than _END_SECONDS
        await ask(inference)
        assert open_files() <= before

    run(Settings(home=tmp_path), steps, **fake)


def test_a_cancelled_request_leaves_no_answer_to_the_next(tmp_path, fake):
    async def steps(inference):
        await ask(inference)
        for wait in (0, 0.05, 0.2):
            cancelled = asyncio.create_task(ask(inference, sleep=0.1, n="cancelled"))
            waiting = asyncio.create_task(ask(inference, n="waiting"))
            gone = asyncio.create_task(ask(inference, n="gone while waiting"))
            await asyncio.sleep(wait)
            cancelled.cancel()
            gone.cancel()
            assert (await waiting)["n"] == "waiting"
            for task in (cancelled, gone):
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            assert (await ask(inference, n="next"))["n"] == "next"

    run(Settings(home=tmp_path), steps, **fake)


def test_more_than_a_few_waiting_are_told_to_come_later(tmp_path, fake):
    async def steps(inference):
        tasks = [asyncio.create_task(ask(inference, sleep=0.5, n=0))]
        tasks += [asyncio.create_task(ask(inference, n=n)) for n in range(1, MOST_WAITING + 4)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [answer["n"] for answer in answers[: MOST_WAITING + 1]] == list(range(MOST_WAITING + 1))
        assert all(isinstance(answer, Infrastructure) for answer in answers[MOST_WAITING + 1 :])
        assert "busy" in str(answers[-1])
        assert (await ask(inference, n=1))["n"] == 1

    run(Settings(home=tmp_path), steps, **fake)


def test_an_idle_child_ends_and_comes_back(tmp_path, fake):
    async def steps(inference):
        first = (await ask(inference))["pid"]
        await gone(first)
        assert (await ask(inference))["pid"] != first

    run(Settings(home=tmp_path, inference_idle_seconds=0.2), steps, **fake)


def test_the_child_is_told_no_secret(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("NML_DATABASE_URL", "postgresql://u:secret@h/d")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    monkeypatch.setenv("NML_ENCODER_TOKEN", TOKEN)

    async def steps(inference):
        environ = (await ask(inference))["environ"]
        assert "NML_HOME" in environ
        assert not {"NML_DATABASE_URL", "MLFLOW_TRACKING_PASSWORD", "NML_ENCODER_TOKEN"} & set(environ)

    run(Settings(home=tmp_path), steps, **fake)


def test_closing_ends_the_child_and_whoever_waits_for_it(tmp_path, fake):
    async def steps(inference):
        first = (await ask(inference))["pid"]
        asked = [asyncio.create_task(ask(inference, sleep=100)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await inference.close()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, Infrastructure) for answer in answers)
        await gone(first)
        with pytest.raises(Infrastructure, match="stopping"):
            await ask(inference)

    run(Settings(home=tmp_path), steps, **fake)


def test_what_cannot_be_started_or_sent_is_said(tmp_path):
    async def steps(inference):
        with pytest.raises(Infrastructure, match="cannot start"):
            await ask(inference)
        with pytest.raises(InvalidInput, match="cannot be sent"):
            await inference.embed(tmp_path, {"nodes": 1}, {"features": np.array(["x"])})

    run(Settings(home=tmp_path), steps, command=(str(tmp_path / "no such program"),))


def test_without_torch_the_remedy_is_told(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('No module named torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from trainer.inference.__main__ import main; main()"

    async def steps(inference):
        for _ in range(2):
            with pytest.raises(Infrastructure, match=r"nml-gcl\[train\]'.*NML_ENCODER_ADDRESS"):
                await inference.embed(tmp_path, {"nodes": 1}, {"features": np.zeros((1, 1))})

    run(Settings(home=tmp_path), steps, command=(sys.executable, "-P", "-c", code))


def test_the_child_dies_with_a_parent_that_is_killed(tmp_path):
    """The parent is killed while the child computes; nothing closes the pipe but the kernel."""
    code = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        import numpy as np
        from service.inference import Inference
        from service.settings import Settings
        slow = ("import time, sys; from trainer.inference import __main__ as m; "
                "m._answer = lambda *a: time.sleep(100); m.main()")
        async def main():
            inference = Inference(Settings(home=Path({str(tmp_path)!r})), command=(sys.executable, "-P", "-c", slow))
            asyncio.create_task(inference.embed(Path("/nowhere"), {{}}, {{}}))
            while inference._peer is None:
                await asyncio.sleep(0.01)
            print(inference._peer.process.pid, flush=True)
            await asyncio.sleep(100)
        asyncio.run(main())
    """)

    async def whole():
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        child = int(await parent.stdout.readline())
        await asyncio.sleep(0.5)
        parent.kill()
        await parent.wait()
        await gone(child)

    asyncio.run(asyncio.wait_for(whole(), 120))
