"""New nodes and classes through a child process or an encoder elsewhere: exact answers, and no request that spoils the
next."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import uvloop

from service.inference import MOST_WAITING, Inference
from service.settings import Settings
from service.vectors.building import build_version
from tests.trainer.inference.encoders import TOKEN, EncoderProcess, alive
from trainer.config import TrainSpec
from trainer.datasets import load
from trainer.errors import Infrastructure, InvalidInput
from trainer.nn.encoder import Encoder
from trainer.run.export import export_embeddings

VERSION = "01k9vect0rs000000000000000"
SPEC = {"encoder": {"hidden": 16, "dim": 8}, "data": {"name": "synthetic", "features": "zscore", "synthetic": {
    "nodes": 200, "classes": 3, "features": 30, "degree": 6}}}  # fmt: skip


def publish(home: Path, document: dict, version: str = VERSION) -> Path:
    """A version as training leaves it, but for the training."""
    spec = TrainSpec.model_validate(document)
    graph = load(spec.data, home=home)
    encoder = Encoder(graph.num_features, spec.encoder, generator=torch.Generator().manual_seed(0))
    run = home / "runs" / version
    export_embeddings(run / "embeddings", encoder, graph, graph_sha256=graph.fingerprint(), dataset=spec.data.name)
    (run / "spec.json").write_text(spec.model_dump_json())
    target = home / "embeddings" / version
    build_version(run / "embeddings", run / "spec.json", target, version=version)
    return target


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def version(home) -> Path:
    return publish(home, SPEC)


def own_edges(graph, nodes) -> dict[str, np.ndarray]:
    """What a client sends for nodes as they are: their raw features and the edges they have (undirected)."""
    source, target = graph.edge_index.numpy()
    at = [(j, int(s)) for j, node in enumerate(nodes) for s in source[target == node]]
    pairs = np.array(at, np.int64).reshape(-1, 2)
    return {
        "features": graph.x.to_dense().numpy()[nodes], "edge_node": pairs[:, 0], "edge_other": pairs[:, 1],
        "edge_weight": np.ones(len(pairs), np.float32), "edge_direction": np.zeros(len(pairs), np.int8),
        "replaces": np.array(nodes),
    }  # fmt: skip


def raw_graph(home: Path):
    data = TrainSpec.model_validate(SPEC).data
    return load(data.model_copy(update={"features": "raw"}), home=home)


def run(settings: Settings, steps, *, encoder: EncoderProcess | None = None, **options):
    """Steps with an Inference, which is closed after them; one that asks an encoder runs as the API does, on uvloop."""
    if encoder is not None:
        update = {"encoder_address": encoder.address, "encoder_token": TOKEN}
        settings = Settings.model_validate(settings.model_dump() | update)

    async def whole():
        inference = Inference(settings, **options)
        try:
            return await asyncio.wait_for(steps(inference), 120)
        finally:
            await inference.close()

    with asyncio.Runner(loop_factory=None if encoder is None else uvloop.new_event_loop) as runner:
        return runner.run(whole())


def test_answers_of_the_child_are_the_published_vectors(home, version):
    vectors = np.load(version / "vectors.npy")
    arrays = own_edges(raw_graph(home), [5, 3, 77])
    labels = np.load(version / "labels.npy")
    rows = np.arange(0, 200, 2)

    async def steps(inference):
        found = await inference.embed(version, {"nodes": 3}, arrays)
        assert found.dtype == np.float32
        assert np.abs(found - vectors[[5, 3, 77]]).max() <= 1e-6 * np.abs(vectors).max()
        child = inference._peer.process.pid
        wrong = arrays | {"features": arrays["features"][:, :-1]}
        with pytest.raises(InvalidInput, match="29 features; the graph has 30"):
            await inference.embed(version, {"nodes": 3}, wrong)
        many = await asyncio.gather(*(inference.embed(version, {"nodes": 3}, arrays) for _ in range(5)))
        assert all(each.tobytes() == found.tobytes() for each in many)
        told = await inference.classify(
            version, {"classes": 3, "seed": 1}, {"rows": rows, "labels": labels[rows].astype(np.int64)}
        )
        assert told["rows"].tolist() == list(range(1, 200, 2))
        assert 0 <= told["accuracy"] <= 1
        assert told["classes"].shape == told["confidence"].shape == (100,)
        with pytest.raises(InvalidInput, match="one class"):
            await inference.classify(version, {"classes": 3}, {"rows": rows, "labels": 0 * rows})
        assert inference._peer.process.pid == child, "the same child answers all"
        return child

    child = run(Settings(home=home), steps)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_version_whose_graph_or_files_are_gone_says_so(home, version, tmp_path, monkeypatch):
    monkeypatch.delenv("NML_DATA", raising=False)
    one = {"features": np.zeros((1, 30), np.float32)}
    changed = json.loads((version / "spec.json").read_text())
    changed["data"]["synthetic"]["seed"] = 1
    gone = json.loads((version / "spec.json").read_text())
    gone["data"] = {"name": "imported", "imported": "papers.0123"}
    elsewhere = json.loads((version / "spec.json").read_text())
    elsewhere["data"] = {"name": "physics"}
    about = json.loads((version / "version.json").read_text())
    del about["export"]["model_sha256"]
    same = json.loads((version / "spec.json").read_text())
    cases = {
        "changed": (changed, "another graph"),
        "gone": (gone, r"no longer there \(data set papers.0123\): upload"),
        "elsewhere": (elsewhere, r"not on this machine \(data set physics\)"),
        "unsaid": (same, "files of this version cannot be read"),
    }
    for name, (spec, _) in cases.items():
        place = tmp_path / name
        place.mkdir()
        for file in version.iterdir():
            os.link(file, place / file.name)
        (place / "spec.json").unlink()
        (place / "spec.json").write_text(json.dumps(spec))
    (tmp_path / "unsaid" / "version.json").unlink()
    (tmp_path / "unsaid" / "version.json").write_text(json.dumps(about))

    async def steps(inference):
        for name, (_, message) in cases.items():
            with pytest.raises(Infrastructure, match=message):
                await inference.embed(tmp_path / name, {"nodes": 1}, one)
        with pytest.raises(Infrastructure, match="cannot be read"):
            await inference.embed(tmp_path / "nothing", {"nodes": 1}, one)
        with pytest.raises(Infrastructure, match="cannot be read"):
            await inference.classify(
                tmp_path / "nothing", {"classes": 2}, {"rows": np.arange(2), "labels": np.arange(2)}
            )
        assert (await inference.embed(version, {"nodes": 1}, one)).shape == (1, 8)

    run(Settings(home=home), steps)


# A child that answers what it is told to: its pid, after a while, not at all, or by dying.
FAKE = textwrap.dedent("""
    import os, sys, threading, time
    import numpy as np
    from trainer.inference import frames
    from trainer.inference.__main__ import _end_with, _end_with_process
    for parent in [word.removeprefix("--parent=") for word in sys.argv if word.startswith("--parent=")]:
        _end_with_process(int(parent))
    threading.Thread(target=_end_with, args=(0,), daemon=True).start()
    while (message := frames.read(sys.stdin.buffer)) is not None:
        head = message[0]["head"]
        if message[0]["do"] == "open":
            name = os.path.basename(message[0]["directory"])
            time.sleep(float(name[5:]) if name.startswith("takes") else 0)
            frames.write(sys.stdout.buffer, {"ok": {}}, {})
            continue
        time.sleep(head.get("sleep", 0))
        if "die" in head:
            os._exit(9)
        if "babble" in head:
            print("this is no frame at all", flush=True)
            continue
        if "pour" in head:
            frames.write(sys.stdout.buffer, {"ok": {}}, {"vectors": np.zeros((head["pour"], 1), np.float32)})
            continue
        told = {"pid": os.getpid(), "n": head.get("n"), "environ": sorted(os.environ)}
        frames.write(sys.stdout.buffer, {"ok": told}, {})
""")


@pytest.fixture(params=["child", "encoder"])
def fake(request, tmp_path):
    """Options of an Inference whose peer does that: a child, or an encoder's."""
    if request.param == "child":
        yield {"command": (sys.executable, "-P", "-c", FAKE)}
        return
    with EncoderProcess(tmp_path, worker=FAKE) as encoder:
        yield {"encoder": encoder, "command": ("no such program",)}


async def ask(inference, **head):
    return await inference.classify(Path("/nowhere"), head, {"rows": np.arange(100_000)})


async def gone(pid: int) -> None:
    while alive(pid):
        await asyncio.sleep(0.02)


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
        with pytest.raises(TimeoutError, match="no answer within 2 seconds"):
            await ask(inference, sleep=100)
        assert (await ask(inference, n=3))["n"] == 3
        await gone(first)

    run(Settings(home=tmp_path, inference_seconds=2), steps, **fake)


def test_opening_a_version_may_take_longer_than_an_answer(tmp_path, fake, monkeypatch):
    async def steps(inference):
        told = await inference.classify(Path("/takes2"), {"n": 1}, {})
        assert told["n"] == 1
        monkeypatch.setattr("service.inference.OPENING_SECONDS", 0.5)
        with pytest.raises(TimeoutError, match=r"could not be opened within 0\.5 seconds"):
            await inference.classify(Path("/takes100"), {"n": 2}, {})
        monkeypatch.setattr("service.inference.OPENING_SECONDS", 60)
        assert (await ask(inference, n=3))["n"] == 3

    run(Settings(home=tmp_path, inference_seconds=1.5), steps, **fake)


def test_a_request_cancelled_in_the_middle_of_a_large_answer_leaves_nothing_behind(tmp_path, fake):
    """Its child ends by itself: `wait` would not return while the pipe is neither read nor closed."""

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
            await asyncio.wait_for(asyncio.gather(*inference._ending), 4)  # less than _END_SECONDS
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

    asyncio.run(asyncio.wait_for(whole(), 60))
