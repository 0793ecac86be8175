"""New nodes and classes of real versions, through a process of our own: exact answers, or what is missing."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.service.encoder.servers import run
from tests.service.encoder.versions import SPEC, VERSION, own_edges, publish, raw_graph
from trainer.errors import Infrastructure, InvalidInput


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def version(home) -> Path:
    return publish(home, SPEC)


def test_answers_of_the_process_are_the_published_vectors(home, version):
    vectors = np.load(version / "vectors.npy")
    arrays = own_edges(raw_graph(home), [5, 3, 77])
    labels = np.load(version / "labels.npy")
    rows = np.arange(0, 200, 2)

    async def steps(client):
        found = await client.embed(VERSION, {"nodes": 3}, arrays)
        assert found.dtype == np.float32
        assert np.abs(found - vectors[[5, 3, 77]]).max() <= 1e-6 * np.abs(vectors).max()
        child = client._encoder._running.process.pid
        wrong = arrays | {"features": arrays["features"][:, :-1]}
        with pytest.raises(InvalidInput, match="29 features; the graph has 30"):
            await client.embed(VERSION, {"nodes": 3}, wrong)
        many = await asyncio.gather(*(client.embed(VERSION, {"nodes": 3}, arrays) for _ in range(5)))
        assert all(each.tobytes() == found.tobytes() for each in many)
        told = await client.classify(
            VERSION, {"classes": 3, "seed": 1}, {"rows": rows, "labels": labels[rows].astype(np.int64)}
        )
        assert told["rows"].tolist() == list(range(1, 200, 2))
        assert 0 <= told["accuracy"] <= 1
        assert told["classes"].shape == told["confidence"].shape == (100,)
        with pytest.raises(InvalidInput, match="one class"):
            await client.classify(VERSION, {"classes": 3, "seed": 0}, {"rows": rows, "labels": 0 * rows})
        assert client._encoder._running.process.pid == child, "the same process answers all"
        return child

    child = run(home, steps)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_version_whose_graph_or_files_are_gone_says_so(home, version, monkeypatch):
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
        place = version.parent / name
        place.mkdir()
        for file in version.iterdir():
            os.link(file, place / file.name)
        (place / "spec.json").unlink()
        (place / "spec.json").write_text(json.dumps(spec))
    (version.parent / "unsaid" / "version.json").unlink()
    (version.parent / "unsaid" / "version.json").write_text(json.dumps(about))

    async def steps(client):
        for name, (_, message) in cases.items():
            with pytest.raises(Infrastructure, match=message):
                await client.embed(name, {"nodes": 1}, one)
        for ask in (client.embed, client.classify):
            with pytest.raises(Infrastructure, match="not in NML_HOME/embeddings"):
                await ask("nothing", {"nodes": 1}, one)
        (version.parent / "gone" / "vectors.npy").unlink()
        with pytest.raises(Infrastructure, match="cannot be read"):
            await client.classify("gone", {"classes": 2, "seed": 0}, {"rows": np.arange(2), "labels": np.arange(2)})
        assert (await client.embed(VERSION, {"nodes": 1}, one)).shape == (1, 8)

    run(home, steps)
