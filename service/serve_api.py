"""`python -m service.serve_api [--fd N]`: the API under uvicorn, with settings from the environment.

Its supervisor passes a socket that listens already, so that clients wait instead of being refused while an API process
is started anew, and several of them can share the port. Without one it listens by itself.
"""

from __future__ import annotations

import argparse
import socket
import sys

import uvicorn

from service.settings import Settings

BACKLOG = 2_048
GRACEFUL_SECONDS = 5
KEEP_ALIVE_SECONDS = 30  # longer than clients pause between looks at a job


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
        made.bind(address)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m service.serve_api", description=__doc__)
    parser.add_argument("--fd", type=int, help="a socket that listens")
    options = parser.parse_args(arguments)
    settings = Settings()
    own = listening_socket(settings.host, settings.port) if options.fd is None else socket.socket(fileno=options.fd)
    config = uvicorn.Config(
        "service.app:from_environment", factory=True, loop="uvloop", http="httptools", ws="none", lifespan="on",
        backlog=BACKLOG, access_log=False, server_header=False, proxy_headers=False, log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.run(sockets=[own])
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
