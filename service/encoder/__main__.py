"""`python -m service.encoder`: an encoder server, a check of one, or (--fd) the process with torch that one starts.

--listen=HOST:PORT   serves APIs on the network that know NML_ENCODER_TOKEN (service.encoder.server)
--check=HOST:PORT    exits with 0 if such a server answers there
--fd=N               answers the parent on this listening socket (service.encoder.process)
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import sys
from pathlib import Path

from service.encoder.address import parse_address, token_from
from service.encoder.client import RemoteEncoder
from service.private_home import create_private_files
from trainer.errors import Infrastructure, TrainerError
from trainer.process.home import nml_home

CONNECTIONS = 8


def main(arguments: list[str] | None = None) -> int:
    """Do what the options say, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.encoder", allow_abbrev=False)
    roles = parser.add_mutually_exclusive_group(required=True)
    roles.add_argument("--listen", metavar="HOST:PORT", help="serve APIs on the network; needs NML_ENCODER_TOKEN")
    roles.add_argument("--check", metavar="HOST:PORT", help="check that an encoder server answers there")
    roles.add_argument("--fd", type=int, metavar="N", help="answer the parent, which made this listening socket")
    parser.add_argument(
        "--connections", type=_positive, metavar="N", default=CONNECTIONS,
        help="with --listen: requests answered at a time, each by a process of its own (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--home", type=Path, help="only versions in its folder embeddings are opened; default NML_HOME")
    options = parser.parse_args(arguments)
    create_private_files()
    home = (options.home or nml_home()).resolve()
    try:
        if options.check:
            asyncio.run(RemoteEncoder(str(parse_address(options.check)), token_from(os.environ)).check())
        elif options.listen:
            _listen(options.listen, home, options.connections)
        else:
            from service.encoder.worker import Worker, answer_parent

            answer_parent(options.fd, Worker(home).answer)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if options.check else error.exit_code
    return 0


def _listen(address: str, home: Path, connections: int) -> None:
    from service.encoder.server import listen

    where, token = parse_address(address), token_from(os.environ)
    if importlib.util.find_spec("torch") is None:
        raise Infrastructure("an encoder needs torch, which is not installed. Run pip install 'nml-gcl[train]'.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for noisy in ("uvicorn", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    listen(where, token, home, connections=connections)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
