"""An API without torch asks an encoder server: the same answers as from a process of its own, and 503 without it."""

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
from service.encoder.client import EncoderClient, RemoteEncoder
from service.settings import Settings
from tests.service.api.embeddings.published import put_job
from tests.service.api.server import serving
from tests.service.encoder.servers import FAKE, TOKEN, EncoderServer, ask, keeps_alive, run, until
from tests.service.encoder.versions import SPEC, VERSION, own_edges, publish, raw_graph
from tests.trainer.tracking.mlflow_server import free_port
from trainer.errors import Infrastructure, InvalidInput


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def version(home: Path) -> Path:
    return publish(home, SPEC)


def test_answers_are_those_of_a_process_of_our_own_bit_for_bit(home, version, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arrays = own_edges(raw_graph(home), [5, 3, 77])
    labels, rows = np.load(version / "labels.npy"), np.arange(0, 200, 2)

    async def steps(client: EncoderClient) -> tuple[Any, dict[str, Any]]:
        vectors = await client.embed(VERSION, {"nodes": 3}, arrays)
        with pytest.raises(InvalidInput, match="29 features; the graph has 30"):
            await client.embed(VERSION, {"nodes": 3}, arrays | {"features": arrays["features"][:, :-1]})
        given = {"rows": rows, "labels": labels[rows].astype(np.int64)}
        return vectors, await client.classify(VERSION, {"classes": 3, "seed": 1}, given)

    async def beyond(client: EncoderClient) -> Any:
        with pytest.raises(Infrastructure, match=r"not in NML_HOME/embeddings.* need the same NML_HOME"):
            await client.embed("nothing", {"nodes": 3}, arrays)
        return await steps(client)

    vectors, told = run(home, steps)
    with EncoderServer(home) as server:
        other_vectors, other_told = run(home, beyond, server=server, command=("no such program",))
    assert vectors.shape == (3, 8)
    assert (vectors.dtype, vectors.tobytes()) == (other_vectors.dtype, other_vectors.tobytes())
    assert told.keys() == other_told.keys()
    for name, value in told.items():
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.tobytes()) == (other_told[name].dtype, other_told[name].tobytes()), name
        else:
            assert value == other_told[name], name


def test_an_encoder_that_was_killed_is_asked_again_when_it_is_back(tmp_path):
    first = EncoderServer(tmp_path, worker=FAKE, port=free_port())

    async def steps(client: EncoderClient) -> None:
        before = await ask(client, n=1)
        first.end(signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(Infrastructure, match=rf"at {first.address} (cannot be reached|closed the connection)"):
                await ask(client, n=2)
        with pytest.raises(Infrastructure, match=r"cannot be reached .*NML_ENCODER_ADDRESS"):
            await ask(client, n=2)
        with EncoderServer(tmp_path, worker=FAKE, port=first.port):
            after = await ask(client, n=3)
            assert (after["n"], after["pid"] == before["pid"]) == (3, False)

    with first:
        run(tmp_path, steps, server=first)


def test_an_encoder_killed_in_the_middle_of_a_request_costs_that_request(tmp_path):
    first = EncoderServer(tmp_path, worker=FAKE, port=free_port())

    async def steps(client: EncoderClient) -> None:
        await ask(client)
        asked = asyncio.create_task(ask(client, sleep=100))
        await asyncio.sleep(0.3)
        first.end(signal.SIGKILL)
        with pytest.raises(Infrastructure, match="closed the connection"):
            await asked
        with EncoderServer(tmp_path, worker=FAKE, port=first.port):
            assert (await ask(client, n=3))["n"] == 3

    with first:
        run(tmp_path, steps, server=first)


def test_a_busy_server_says_so_and_the_next_question_is_a_new_one(tmp_path):
    with EncoderServer(tmp_path, worker=FAKE, connections=1) as server:

        async def steps(second: EncoderClient) -> None:
            first = EncoderClient(tmp_path, address=server.address, token=TOKEN)
            await ask(first)
            long = asyncio.create_task(ask(first, sleep=1000))
            await asyncio.sleep(0.5)
            for _ in range(2):
                with pytest.raises(Infrastructure, match="busy: 1 connections"):
                    await ask(second)
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)
            assert (await ask(second, n=2))["n"] == 2
            await first.close()

        run(tmp_path, steps, server=server)


def test_two_apis_share_a_process_if_they_ask_one_after_the_other(tmp_path):
    with EncoderServer(tmp_path, worker=FAKE) as server:

        async def steps(second: EncoderClient) -> None:
            first = EncoderClient(tmp_path, address=server.address, token=TOKEN)
            assert (await ask(first))["pid"] == (await ask(second))["pid"]
            await first.close()

        run(tmp_path, steps, server=server)


def test_a_wrong_token_is_said_and_not_shown(tmp_path):
    with EncoderServer(tmp_path, worker=FAKE) as server:

        async def steps(client: EncoderClient) -> None:
            with pytest.raises(Infrastructure, match="refuses the connection: wrong token") as refusal:
                await ask(client)
            assert "xxx" not in str(refusal.value)
            assert TOKEN not in str(refusal.value)

        run(tmp_path, steps, server=server, token="x" * 16)


@pytest.fixture(params=[b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"this is not HTTP\r\n\r\n", None])
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
        assert not thread.is_alive(), "the client kept the connection"


def test_a_server_that_is_not_an_encoder_cannot_be_reached(tmp_path, stranger, monkeypatch):
    monkeypatch.setattr("service.encoder.client.HEALTH_SECONDS", 0.3)

    async def steps(client: EncoderClient) -> None:
        with pytest.raises(Infrastructure, match=f"encoder at {stranger} cannot be reached .*NML_ENCODER_ADDRESS"):
            await ask(client)

    run(tmp_path, steps, address=stranger, token=TOKEN)


def test_either_side_notices_that_the_other_vanished(tmp_path):
    """Whose cable is cut cannot be tried on one machine; that the kernel will ask for the peer can be seen."""
    with EncoderServer(tmp_path, worker=FAKE) as server:

        async def steps(client: EncoderClient) -> None:
            assert isinstance(client._encoder, RemoteEncoder)
            async with client._encoder._client.stream("GET", "/health") as response:
                local = response.extensions["network_stream"].get_extra_info("client_addr")[1]
                until(lambda: keeps_alive(local, server.port))
                until(lambda: keeps_alive(server.port, local))

        run(tmp_path, steps, server=server)


def test_the_api_answers_through_an_encoder_and_503_while_it_is_away(home, version):
    x = raw_graph(home).x.to_dense().numpy()
    body = {"nodes": [{"features": x[3].tolist(), "edges": [1, 2]}]}
    labels = np.load(version / "labels.npy")
    known = {"ids": list(range(0, 200, 2)), "labels": labels[::2].tolist(), "predict": [1, 3]}
    first = EncoderServer(home, port=free_port())
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
        with EncoderServer(home, port=first.port):
            assert post("embed", body).json() == found.json()
