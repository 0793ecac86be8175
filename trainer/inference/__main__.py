"""`python -m trainer.inference`: answers frames (trainer.inference.frames) from stdin on stdout, one at a time.

    {"do": "open", "directory": D, "head": {"to": "embed"}}      -> {"ok": {}}, likewise {"to": "classify"}
    {"do": "embed", "directory": D, "head": {"nodes": m}}        -> arrays {"vectors": [m, dim]}
    {"do": "classify", "directory": D, "head": {"classes": C}}   -> {"ok": figures}, arrays rows, classes, confidence
    what fails                                                   -> {"error": {"kind": "invalid" | "infra", "message"}}

D is a version's folder. To open it loads torch and, to embed, encoder and graph, as far as they are not loaded yet: a
caller who asks for that first can give it another time limit than the rest. Ends when stdin does, also in the middle of
a computation: nobody would read the answer.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trainer.errors import Infrastructure, InvalidInput, TrainerError
from trainer.inference import frames
from trainer.threads import wait_politely

if TYPE_CHECKING:
    from trainer.inference.version import Versions

log = logging.getLogger("trainer.inference")
MEMORY = "memory ran out. Send fewer nodes or labels at a time, or give the service more."


def main() -> int:
    """Serve until stdin ends."""
    wait_politely()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print into the frames
    requests = sys.stdin.buffer
    threading.Thread(target=_end_with, args=(requests.fileno(),), daemon=True).start()
    try:
        serve(requests, answers)
    except BrokenPipeError:
        return 0  # the other side is gone
    except frames.FrameError as error:
        log.error("cannot go on: %s", error)
        return Infrastructure.exit_code
    return 0


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer one request after the other."""
    state: list[Versions] = []
    while (message := frames.read(requests)) is not None:
        try:
            head, arrays = _answer(*message, state)
        except Exception as error:
            head, arrays = {"error": _told(error)}, {}
        del message
        frames.write(answers, head, arrays)


def _answer(request: dict[str, Any], arrays: frames.Arrays, state: list[Versions]) -> tuple[dict[str, Any], Any]:
    do, directory, head = request.get("do"), request.get("directory"), request.get("head")
    if do not in ("open", "embed", "classify") or not isinstance(directory, str) or not isinstance(head, dict):
        raise InvalidInput(f"cannot do {do!r}; known are open, embed and classify.")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Infrastructure(
            f"new nodes and classes need torch, not installed here ({error}). Run pip install 'nml-gcl[train]'."
        ) from error
    if do == "classify" or (do == "open" and head.get("to") == "classify"):
        import numpy as np

        from trainer.inference.classify import classify_request

        try:
            vectors = np.load(Path(directory) / "vectors.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise Infrastructure("the vectors of this version cannot be read. Publish it again.") from error
        if do == "open":
            return {"ok": {}}, {}
        figures, found = classify_request(vectors, head, arrays)
        return {"ok": figures}, found
    from trainer.inference.new_nodes import embed_new_nodes
    from trainer.inference.version import Versions

    if not state:
        state.append(Versions())
    version = state[0].get(Path(directory))
    if do == "open":
        return {"ok": {}}, {}
    nodes = head.get("nodes")
    if type(nodes) is not int:
        raise InvalidInput("head.nodes must be the number of new nodes.")
    vectors = embed_new_nodes(version.encoder, version.graph, version.preparation, nodes, arrays)
    return {"ok": {"nodes": nodes}}, {"vectors": vectors}


def _told(error: Exception) -> dict[str, str]:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's own is a RuntimeError
        return {"kind": "infra", "message": MEMORY}
    if isinstance(error, InvalidInput):
        return {"kind": "invalid", "message": str(error)}
    if isinstance(error, TrainerError):
        return {"kind": "infra", "message": str(error)}
    log.error("unexpected: %s", error, exc_info=error)
    return {"kind": "infra", "message": f"this could not be computed ({type(error).__name__})"}


def _end_with(descriptor: int) -> None:
    """Leave at once when the other end of stdin is closed, even by kill -9."""
    poll = select.poll()
    poll.register(descriptor, 0)  # nothing but hang-ups
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
