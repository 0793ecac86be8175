"""Where an encoder on the network is, the token it asks for, and how both sides notice that the other is gone.

Standard library only: settings read it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from trainer.errors import InvalidInput

TOKEN = "NML_ENCODER_TOKEN"
LEAST_TOKEN = 16  # characters
GONE_SECONDS = 60  # after which a peer that sends nothing, not even what TCP itself does, counts as gone
_IDLE, _BETWEEN = 20, 10


class Address(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """From host:port, or [::1]:port.

    Raises:
        InvalidInput: it is neither.
    """
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or any(sign in host for sign in " /@[]") or not (port.isascii() and port.isdigit()):
        raise InvalidInput(f"{text!r} is no address. Write host:port, such as encoder:8100 or [::1]:8100.")
    if int(port) > 65_535:
        raise InvalidInput(f"{text!r}: there is no port {port}. The largest is 65535.")
    return Address(host, int(port))


def check_token(token: str) -> None:
    """Raises InvalidInput, which does not show it, for a token that could be guessed or got lost on its way."""
    if len(token) < LEAST_TOKEN:
        found = f"at least {LEAST_TOKEN} characters, not {len(token)}"
    elif any(not "!" <= letter <= "~" for letter in token):
        found = "of visible ASCII characters"
    else:
        return
    raise InvalidInput(f"the encoder's token must be {found}. Make one with: openssl rand -hex 32.")


def token_from(environ: Mapping[str, str]) -> str:
    """The token that the environment holds.

    Raises:
        InvalidInput: it holds none, or one that is too short.
    """
    token = environ.get(TOKEN, "")
    if not token:
        raise InvalidInput(f"{TOKEN} is not set. Encoder and API need the same token: at least {LEAST_TOKEN} letters.")
    check_token(token)
    return token


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel ask an idle peer whether it is there, and give up one that has not answered for GONE_SECONDS."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    count = (GONE_SECONDS - _IDLE) // _BETWEEN
    linux = {"TCP_KEEPIDLE": _IDLE, "TCP_KEEPINTVL": _BETWEEN, "TCP_KEEPCNT": count}
    linux["TCP_USER_TIMEOUT"] = GONE_SECONDS * 1000  # while something is under way nobody asks: milliseconds
    for name, value in linux.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
