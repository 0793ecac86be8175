"""Versions to ask about, and somebody to answer, for tests of new nodes and classes."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import uvloop

from service.embeddings.publish import build_version
from service.inference import Inference
from service.settings import Settings
from tests.trainer.inference.encoders import TOKEN, EncoderProcess, alive
from trainer.config import TrainSpec
from trainer.data.datasets import load
from trainer.export.embeddings import export_embeddings
from trainer.nn.encoder import Encoder

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
            return await asyncio.wait_for(steps(inference), 240)
        finally:
            await inference.close()

    with asyncio.Runner(loop_factory=None if encoder is None else uvloop.new_event_loop) as runner:
        return runner.run(whole())


@contextmanager
def answered_within(inference: Inference, seconds: float) -> Iterator[None]:
    """So long may an answer take meanwhile."""
    before = inference._settings
    inference._settings = before.model_copy(update={"inference_seconds": seconds})
    try:
        yield
    finally:
        inference._settings = before


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
        if "odd" in head:
            odd, arrays = [
                ({}, {}), ({"error": "x"}, {}), ({"error": {"message": "x"}}, {}), ({"ok": []}, {}), ({"ok": {}}, {}),
                ({"ok": {}}, {"vectors": np.zeros((1, 1))}), ({"ok": {}}, {"vectors": np.zeros(1, np.float32)}),
            ][head["odd"]]
            frames.write(sys.stdout.buffer, odd, arrays)
            continue
        told = {"pid": os.getpid(), "n": head.get("n"), "environ": sorted(os.environ)}
        none = {name: np.zeros(0, np.int64) for name in ("rows", "classes", "confidence")}
        frames.write(sys.stdout.buffer, {"ok": told}, none)
""")


async def ask(inference, **head):
    return await inference.classify(Path("/nowhere"), head, {"rows": np.arange(100_000)})


async def gone(pid: int) -> None:
    while alive(pid):
        await asyncio.sleep(0.02)
