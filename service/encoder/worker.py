"""What the process with torch computes: vectors of new nodes, classes from a few labels.

The only module of the service that calls the trainer's torch side; it is loaded in that process alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from service.encoder.app import create_app
from service.encoder.messages import Question, pack, unpack
from service.encoder.server import run
from trainer.errors import Infrastructure
from trainer.process.parent_death import call_on_parent_death
from trainer.process.threads import wait_politely

if TYPE_CHECKING:
    from trainer.inference.version import Versions


class Worker:
    """Answers one question at a time; the versions asked for last stay open.

    Args:
        home: only versions in its folder `embeddings` are opened.
    """

    def __init__(self, home: Path):
        self._embeddings = home / "embeddings"
        self._lock = asyncio.Lock()
        self._versions: Versions | None = None

    async def answer(self, question: Question) -> bytes:
        """What the question asks for.

        embed      {"nodes": m} and the arrays of `embed_new_nodes`          -> {}, vectors [m, dim]
        classify   {"classes": C, "seed": s} and the arrays of `classify`    -> figures, rows, classes, confidence

        Raises:
            InvalidInput: the question is at fault.
            Infrastructure: torch is not installed, or the version cannot be read.
        """
        async with self._lock:
            compute = self._embed if question.operation == "embed" else self._classify
            return await asyncio.to_thread(compute, self._directory(question.version), question.message)

    def _embed(self, directory: Path, message: bytes) -> bytes:
        _require_torch()
        from trainer.inference.new_nodes import embed_new_nodes
        from trainer.inference.version import Versions

        self._versions = self._versions or Versions()
        version = self._versions.get(directory)
        if not message:
            return b""
        document, arrays = unpack(message)
        vectors = embed_new_nodes(version.encoder, version.graph, version.preparation, document["nodes"], arrays)
        return pack({}, {"vectors": vectors})

    def _classify(self, directory: Path, message: bytes) -> bytes:
        _require_torch()
        from trainer.inference.classify import classify

        try:
            vectors = np.load(directory / "vectors.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise Infrastructure("the vectors of this version cannot be read. Publish it again.") from error
        if not message:
            return b""
        document, arrays = unpack(message)
        rows, labels, predict = arrays["rows"], arrays["labels"], arrays.get("predict")
        return pack(*classify(vectors, rows, labels, document["classes"], predict=predict, seed=document["seed"]))

    def _directory(self, version: str) -> Path:
        """The version's folder, without links: whoever asks over the network opens nothing else."""
        root = self._embeddings.resolve()
        try:
            found = (root / version).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # not there, a null character, links in a circle
            found = root
        if found.parent != root:
            raise Infrastructure("this version is not in NML_HOME/embeddings. API and encoder need the same NML_HOME.")
        return found


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Infrastructure(
            f"new nodes and classes need torch, which is not installed ({error}). Run pip install 'nml-gcl[train]', or "
            "set NML_ENCODER_ADDRESS to an encoder server that has it."
        ) from error


def answer_parent(fd: int, answer: Callable[[Question], Awaitable[bytes]]) -> None:
    """Answer on a listening socket that the parent made (service.encoder.process), and end with the parent."""
    listening = socket.socket(fileno=fd)

    def leave() -> None:
        with suppress(OSError):  # what the parent did not live to remove
            os.unlink(listening.getsockname())
            os.rmdir(os.path.dirname(listening.getsockname()))
        os._exit(0)  # also in the middle of a computation

    call_on_parent_death(leave)
    wait_politely()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    run(create_app(answer), listening)
