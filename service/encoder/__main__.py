"""`python -m service.encoder`: an encoder server, a look at one, or (--fd) the process with torch that one starts.

--listen=HOST:PORT   serves APIs on the network that know NML_ENCODER_TOKEN (service.encoder.server)
--check=HOST:PORT    exits with 0 if such a server answers there
--fd=N               answers whoever connects to this listening socket (service.encoder.process)
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from service.encoder import server
from service.encoder.address import parse_address, token_from
from service.encoder.app import create_app
from service.encoder.client import RemoteEncoder
from service.encoder.messages import Question
from service.encoder.worker import Worker
from trainer.errors import Infrastructure, TrainerError
from trainer.process.home import nml_home
from trainer.process.parent_death import call_on_parent_death
from trainer.process.threads import wait_politely


def main(arguments: list[str] | None = None) -> int:
    """Do what the options say, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.encoder", allow_abbrev=False)
    roles = parser.add_mutually_exclusive_group(required=True)
    roles.add_argument("--listen", metavar="HOST:PORT", help="serve APIs on the network; needs NML_ENCODER_TOKEN")
    roles.add_argument("--check", metavar="HOST:PORT", help="check that an encoder server answers there")
    roles.add_argument("--fd", type=int, metavar="N", help="answer on this listening socket; the API starts it so")
    parser.add_argument(
        "--connections", type=_positive, metavar="N", default=server.CONNECTIONS,
        help="with --listen: requests answered at a time, each by a process of its own (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--home", type=Path, help="only versions in its folder embeddings are opened; default NML_HOME")
    options = parser.parse_args(arguments)
    home = (options.home or nml_home()).resolve()
    try:
        if options.fd is not None:
            wait_politely()
            answer_parent(options.fd, Worker(home).answer)
        elif options.check:
            asyncio.run(RemoteEncoder(str(parse_address(options.check)), token_from(os.environ)).check())
        else:
            _listen(options.listen, home, options.connections)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if options.check else error.exit_code
    return 0


def _listen(address: str, home: Path, connections: int) -> None:
    where, token = parse_address(address), token_from(os.environ)
    if importlib.util.find_spec("torch") is None:
        raise Infrastructure("an encoder needs torch, which is not installed. Run pip install 'nml-gcl[train]'.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for noisy in ("uvicorn", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    server.listen(where, token, home, connections=connections)


def answer_parent(fd: int, answer: Callable[[Question], Awaitable[bytes]]) -> None:
    """Answer on a listening socket that the parent made (service.encoder.process), and end with the parent."""
    listening = socket.socket(fileno=fd)

    def leave() -> None:
        with suppress(OSError):  # the parent could not remove them
            os.unlink(listening.getsockname())
            os.rmdir(os.path.dirname(listening.getsockname()))
        os._exit(0)  # also in the middle of a computation

    call_on_parent_death(leave)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    server.run(create_app(answer), listening)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
