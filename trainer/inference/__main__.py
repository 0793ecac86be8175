"""`python -m trainer.inference`: answers frames (trainer.inference.frames) from stdin on stdout, one at a time.

    {"do": "open", "directory": D, "head": {"to": "embed"}}      -> {"ok": {}}, likewise {"to": "classify"}
    {"do": "embed", "directory": D, "head": {"nodes": m}}        -> arrays {"vectors": [m, dim]}
    {"do": "classify", "directory": D, "head": {"classes": C}}   -> {"ok": figures}, arrays rows, classes, confidence
    what fails                                                   -> {"error": {"kind": "invalid" | "infra", "message"}}

D is a version's folder. To open it loads torch and, to embed, encoder and graph, as far as they are not loaded yet: a
caller who asks for that first can give it another time limit than the rest. Ends when stdin does, also in the middle of
a computation: nobody would read the answer.

    --listen=HOST:PORT   does the same for peers on the network that know NML_ENCODER_TOKEN (trainer.inference.listener)
    --check=HOST:PORT    exits with 0 if such an encoder answers there
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import logging
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trainer.errors import Infrastructure, InvalidInput, TrainerError
from trainer.inference import frames
from trainer.inference.address import parse_address, token_from
from trainer.process.home import nml_home
from trainer.process.threads import wait_politely

if TYPE_CHECKING:
    from trainer.inference.version import Versions

log = logging.getLogger("trainer.inference")
MEMORY = "memory ran out. Send fewer nodes or labels at a time, or give the service more."


def main(arguments: list[str] | None = None) -> int:
    """Do what the options say, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.inference", allow_abbrev=False)
    roles = parser.add_mutually_exclusive_group()
    roles.add_argument("--listen", metavar="HOST:PORT", help="serve peers on the network; needs NML_ENCODER_TOKEN")
    roles.add_argument("--check", metavar="HOST:PORT", help="see that an encoder answers there")
    parser.add_argument("--connections", type=_positive, metavar="N", help="with --listen: peers at a time, default 8")
    parser.add_argument("--home", type=Path, help="open nothing but versions below its folder embeddings")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process, which started us, does")
    options = parser.parse_args(arguments)
    try:
        if options.listen or options.check:
            return _on_the_network(options)
        return _answer_stdin(options.home, options.parent)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if options.check else error.exit_code


def _on_the_network(options: argparse.Namespace) -> int:
    from trainer.inference import listener

    address, token = parse_address(options.listen or options.check), token_from(os.environ)
    if options.check:
        listener.check(address, token)
        return 0
    if importlib.util.find_spec("torch") is None:
        raise Infrastructure("an encoder needs torch, not installed here. Run pip install 'nml-gcl[train]'.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    home = (options.home or nml_home()).resolve()
    return listener.listen(address, token, home, connections=options.connections or listener.CONNECTIONS)


def _answer_stdin(home: Path | None, parent: int | None) -> int:
    """Serve until stdin ends."""
    if parent is not None:
        _end_with_process(parent)
    wait_politely()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print into the frames
    requests = sys.stdin.buffer
    threading.Thread(target=_end_with, args=(requests.fileno(),), daemon=True).start()
    try:
        serve(requests, answers, home)
    except OSError:
        return 0  # the other side is gone
    except frames.FrameError as error:
        log.error("cannot go on: %s", error)
        return Infrastructure.exit_code
    return 0


def serve(requests: BinaryIO, answers: BinaryIO, home: Path | None = None) -> None:
    """Answer one request after the other."""
    state: list[Versions] = []
    while (message := frames.read(requests)) is not None:
        try:
            head, arrays = _answer(*message, state, home)
        except Exception as error:
            head, arrays = {"error": _told(error)}, {}
        del message
        frames.write(answers, head, arrays)


def _answer(
    request: dict[str, Any], arrays: frames.Arrays, state: list[Versions], home: Path | None
) -> tuple[dict[str, Any], Any]:
    do, named, head = request.get("do"), request.get("directory"), request.get("head")
    if do not in ("open", "embed", "classify") or not isinstance(named, str) or not isinstance(head, dict):
        raise Infrastructure(f"cannot do {do!r}; API and encoder are not of one version.")
    directory = Path(named) if home is None else _below(home / "embeddings", named)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Infrastructure(
            f"new nodes and classes need torch, not installed here ({error}). Run pip install 'nml-gcl[train]', or "
            "name an encoder elsewhere in NML_ENCODER_ADDRESS."
        ) from error
    if do == "classify" or (do == "open" and head.get("to") == "classify"):
        import numpy as np

        from trainer.inference.classify import classify_request

        try:
            vectors = np.load(directory / "vectors.npy", mmap_mode="r", allow_pickle=False)
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
    version = state[0].get(directory)
    if do == "open":
        return {"ok": {}}, {}
    nodes = head.get("nodes")
    if type(nodes) is not int:
        raise InvalidInput("head.nodes must be the number of new nodes.")
    vectors = embed_new_nodes(version.encoder, version.graph, version.preparation, nodes, arrays)
    return {"ok": {"nodes": nodes}}, {"vectors": vectors}


def _below(root: Path, named: str) -> Path:
    """The folder meant, without links; a peer on the network opens nothing but versions."""
    try:
        found, root = Path(named).resolve(), root.resolve()
    except (OSError, ValueError, RuntimeError):  # a null character, links in a circle
        found = root
    if root not in found.parents:
        raise Infrastructure("this folder is not below NML_HOME/embeddings. API and encoder need the same NML_HOME.")
    return found


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
    # Hang-ups are told unasked. That a TCP peer has closed its end is none, as long as ours is open.
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))
    poll.poll()
    os._exit(0)


def _end_with_process(parent: int) -> None:
    """Have the kernel kill us when the thread that started us ends. Linux only."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was killed before that
        os._exit(0)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
