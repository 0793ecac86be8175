"""`python -m service.serve_api [--fd N] [--counts FOLDER --slot N]`: the API under uvicorn, set by the environment.

Its supervisor passes a socket that listens already, so that clients wait instead of being refused while an API process
is started anew, and several of them can share the port; those then count their requests together, in a folder
(`service.api.edge.multiprocess_metrics`). Without a socket it listens by itself.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from service.api.edge.multiprocess_metrics import FOLDER_VARIABLE, join
from service.net.bounded_http import bounded_http
from service.net.places import Places
from service.private_home import create_private_files
from service.settings import Settings

BACKLOG = 2_048
GRACEFUL_SECONDS = 5
KEEP_ALIVE_SECONDS = 30  # longer than clients pause between looks at a job
MOST_FILES = 65_536  # open at a time, where the system lets us
SPARE_FILES = 200  # for the database, uploads, downloads, logs
CONNECTIONS = 4_000  # beside those that watch events
STALLED_SECONDS = 60.0  # a client that takes nothing of what it was sent for so long is disconnected


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which an API process can accept; port 0: any free one.

    Raises:
        OSError: the port is taken, or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.getaddrinfo(host.strip("[]"), port, family=family, type=socket.SOCK_STREAM)[0][4]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; inherited by accepted connections
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1_000 * STALLED_SECONDS))
        made.bind(address)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def raise_file_limit() -> int:
    """Let this process open as many files as it may, at most MOST_FILES. Returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m service.serve_api", description=__doc__)
    parser.add_argument("--fd", type=int, help="a socket that listens")
    parser.add_argument("--counts", type=Path, help="a folder in which several API processes count together")
    parser.add_argument("--slot", type=int, default=1, help="which of them this is, from 1")
    options = parser.parse_args(arguments)
    create_private_files()
    settings = Settings()
    own = listening_socket(settings.host, settings.port) if options.fd is None else socket.socket(fileno=options.fd)
    connections = max(SPARE_FILES, min(settings.max_watchers + CONNECTIONS, raise_file_limit() - SPARE_FILES))
    places = Places(connections, waiting_per_address=settings.max_idle_per_address)
    config = uvicorn.Config(
        lambda: _app(settings, options.counts, options.slot), factory=True, loop="uvloop", http=bounded_http(places),
        ws="none", lifespan="on", backlog=BACKLOG, access_log=False, server_header=False,
        proxy_headers=False, log_level="warning", timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.run(sockets=[own])
    return 0 if server.started else 1


def _app(settings: Settings, counts: Path | None, slot: int) -> Any:
    os.environ.pop(FOLDER_VARIABLE, None)  # another program's, if anyone's
    from service.api.edge.metrics import RequestMetrics
    from service.app import create_app

    joined = counts is not None and join(counts, slot)
    return create_app(settings, RequestMetrics(counts if joined else None))


if __name__ == "__main__":
    sys.exit(main())
