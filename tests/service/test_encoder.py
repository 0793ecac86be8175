"""An API without torch asks an encoder over the network: the same answers as from its own child, and 503 without it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.embeddings.jobs import about_version
from service.embeddings.layout import read_info
from service.inference import Inference
from service.settings import Settings
from tests.service.api.embeddings.published import put_job
from tests.service.api.server import serving
from tests.service.inferences import FAKE, SPEC, VERSION, ask, own_edges, publish, raw_graph, run
from tests.trainer.inference.encoders import TOKEN, EncoderProcess, keeps_alive, until
from tests.trainer.tracking.mlflow_server import free_port
from trainer.errors import Infrastructure, InvalidInput


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def version(home: Path) -> Path:
    return publish(home, SPEC)


def test_answers_are_those_of_a_child_bit_for_bit(home, version, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arrays = own_edges(raw_graph(home), [5, 3, 77])
    labels, rows = np.load(version / "labels.npy"), np.arange(0, 200, 2)

    async def steps(inference: Inference) -> tuple[Any, dict[str, Any]]:
        vectors = await inference.embed(version, {"nodes": 3}, arrays)
        with pytest.raises(InvalidInput, match="29 features; the graph has 30"):
            await inference.embed(version, {"nodes": 3}, arrays | {"features": arrays["features"][:, :-1]})
        given = {"rows": rows, "labels": labels[rows].astype(np.int64)}
        return vectors, await inference.classify(version, {"classes": 3, "seed": 1}, given)

    async def beyond(inference: Inference) -> Any:
        with pytest.raises(Infrastructure, match="not below NML_HOME/embeddings"):
            await inference.embed(tmp_path, {"nodes": 3}, arrays)
        with pytest.raises(Infrastructure, match="cannot be read"):
            await inference.embed(version.parent / "nothing", {"nodes": 3}, arrays)
        return await steps(inference)

    vectors, told = run(Settings(home=home), steps)
    with EncoderProcess(home) as encoder:
        other_vectors, other_told = run(Settings(home=home), beyond, encoder=encoder, command=("no such program",))
    assert vectors.shape == (3, 8)
    assert (vectors.dtype, vectors.tobytes()) == (other_vectors.dtype, other_vectors.tobytes())
    assert told.keys() == other_told.keys()
    for name, value in told.items():
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.tobytes()) == (other_told[name].dtype, other_told[name].tobytes()), name
        else:
            assert value == other_told[name], name


def test_an_encoder_that_was_killed_is_asked_again_when_it_is_back(tmp_path):
    first = EncoderProcess(tmp_path, worker=FAKE, port=free_port())

    async def steps(inference: Inference) -> None:
        before = await ask(inference, n=1)
        first.end(signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(Infrastructure, match=rf"encoder at {first.address} (cannot be reached|broke off)"):
                await ask(inference, n=2)
        with pytest.raises(Infrastructure, match=r"cannot be reached .*NML_ENCODER_ADDRESS"):
            await ask(inference, n=2)
        with EncoderProcess(tmp_path, worker=FAKE, port=first.port):
            after = await ask(inference, n=3)
            assert (after["n"], after["pid"] == before["pid"]) == (3, False)

    with first:
        run(Settings(home=tmp_path), steps, encoder=first)


def test_an_encoder_killed_in_the_middle_of_a_request_costs_that_request(tmp_path):
    first = EncoderProcess(tmp_path, worker=FAKE, port=free_port())

    async def steps(inference: Inference) -> None:
        await ask(inference)
        asked = asyncio.create_task(ask(inference, sleep=100))
        await asyncio.sleep(0.3)
        first.end(signal.SIGKILL)
        with pytest.raises(Infrastructure, match="broke off"):
            await asked
        with EncoderProcess(tmp_path, worker=FAKE, port=first.port):
            assert (await ask(inference, n=3))["n"] == 3

    with first:
        run(Settings(home=tmp_path), steps, encoder=first)


def test_all_places_taken_is_said_and_the_next_request_is_a_new_one(tmp_path):
    with EncoderProcess(tmp_path, worker=FAKE, connections=1) as encoder:

        async def steps(second: Inference) -> None:
            first = Inference(second._settings)
            await ask(first)
            for _ in range(2):
                with pytest.raises(Infrastructure, match="busy: 1 connections"):
                    await ask(second)
            await first.close()
            await asyncio.to_thread(until, lambda: not encoder.workers())
            assert (await ask(second, n=2))["n"] == 2

        run(Settings(home=tmp_path), steps, encoder=encoder)


def test_a_wrong_token_is_said_and_not_shown(tmp_path):
    with EncoderProcess(tmp_path, worker=FAKE) as encoder:
        settings = Settings(home=tmp_path, encoder_address=encoder.address, encoder_token="x" * 16)

        async def steps(inference: Inference) -> None:
            with pytest.raises(Infrastructure, match="refuses us: wrong token") as refusal:
                await ask(inference)
            assert "xxx" not in str(refusal.value)
            assert TOKEN not in str(refusal.value)

        run(settings, steps)


@pytest.fixture(params=[b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"NML1\xff\xff\xff\xff", None])
def stranger(request) -> Iterator[str]:
    """Not an encoder: it leaves, says something else, or (None) nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def attend() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1)
                if request.param is None:
                    connection.settimeout(120)
                    while connection.recv(1 << 16):
                        pass
                connection.sendall(request.param or b"")

        thread = threading.Thread(target=attend)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(120)
        assert not thread.is_alive(), "it was left"


def test_who_is_no_encoder_cannot_be_reached(tmp_path, stranger, monkeypatch):
    monkeypatch.setattr("service.peers._HELLO_SECONDS", 0.3)

    async def steps(inference: Inference) -> None:
        with pytest.raises(Infrastructure, match=f"encoder at {stranger} cannot be reached .it says no hello"):
            await ask(inference)

    run(Settings(home=tmp_path, encoder_address=stranger, encoder_token=TOKEN), steps)


def test_an_encoder_that_vanishes_is_noticed_by_the_kernel(tmp_path):
    with EncoderProcess(tmp_path, worker=FAKE) as encoder:

        async def steps(inference: Inference) -> None:
            await ask(inference)
            assert inference._peer is not None
            local = inference._peer.writer.get_extra_info("sockname")[1]
            until(lambda: keeps_alive(local, encoder.port))
            until(lambda: keeps_alive(encoder.port, local))

        run(Settings(home=tmp_path), steps, encoder=encoder)


def test_the_api_answers_through_an_encoder_and_503_while_it_is_away(home, version):
    x = raw_graph(home).x.to_dense().numpy()
    body = {"nodes": [{"features": x[3].tolist(), "edges": [1, 2]}]}
    labels = np.load(version / "labels.npy")
    known = {"ids": list(range(0, 200, 2)), "labels": labels[::2].tolist(), "predict": [1, 3]}
    first = EncoderProcess(home, port=free_port())
    settings = Settings(
        home=home, poll_seconds=0.02, rate_burst=10**6, encoder_address=first.address, encoder_token=TOKEN
    )
    with first, serving(settings) as live:
        put_job(live.store, VERSION)
        row = live.store.embeddings.get(VERSION)
        assert row is not None
        live.store.embeddings.finish(VERSION, row.job_id, about=about_version(read_info(version)))

        def post(what: str, document: dict[str, Any]) -> Any:
            return live.http.post(f"/v1/embeddings/{VERSION}/{what}", json=document, timeout=120)

        found = post("embed", body)
        assert found.status_code == 200, found.text
        (worker,) = first.workers()
        assert "libtorch" in Path(f"/proc/{worker}/maps").read_text(), "the encoder's process computed it"
        classes = post("classify", known)
        assert classes.status_code == 200, classes.text
        first.end(signal.SIGKILL)
        until(lambda: "cannot be reached" in post("embed", body).text)
        away = post("embed", body)
        assert (away.status_code, away.headers["content-type"]) == (503, "application/problem+json")
        assert int(away.headers["retry-after"]) > 0
        assert TOKEN not in away.text
        with EncoderProcess(home, port=first.port):
            assert post("embed", body).json() == found.json()
