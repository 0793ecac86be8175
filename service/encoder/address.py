"""Where an encoder server on the network is, the token it asks for, and how both sides notice that the other is gone.

Standard library only: settings read it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from trainer.errors import InvalidInput

TOKEN = "NML_ENCODER_TOKEN"
MIN_TOKEN_LENGTH = 16
GONE_SECONDS = 60  # after which a peer whose kernel does not answer counts as gone
_IDLE, _INTERVAL = 20, 10
_LINUX = {
    "TCP_KEEPIDLE": _IDLE, "TCP_KEEPINTVL": _INTERVAL, "TCP_KEEPCNT": (GONE_SECONDS - _IDLE) // _INTERVAL,
    "TCP_USER_TIMEOUT": GONE_SECONDS * 1000,  # milliseconds; for data on its way, when there are no keep-alive probes
}  # fmt: skip
KEEP_ALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _LINUX.items() if hasattr(socket, name)),
]  # fmt: skip


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
        raise InvalidInput(f"{text!r} is not an address. Write host:port, such as encoder:8100 or [::1]:8100.")
    if int(port) > 65_535:
        raise InvalidInput(f"{text!r}: port {port} is too large. The largest is 65535.")
    return Address(host, int(port))


def check_token(token: str) -> None:
    """Raises InvalidInput, which does not show it, for a token that is easily guessed or does not fit into a header."""
    if len(token) < MIN_TOKEN_LENGTH:
        rule = f"have at least {MIN_TOKEN_LENGTH} characters, not {len(token)}"
    elif any(not "!" <= letter <= "~" for letter in token):
        rule = "consist of visible ASCII characters"
    else:
        return
    raise InvalidInput(f"the encoder's token must {rule}. Make one with: openssl rand -hex 32.")


def token_from(environ: Mapping[str, str]) -> str:
    """The token in the environment.

    Raises:
        InvalidInput: there is none, or it is too short.
    """
    token = environ.get(TOKEN, "")
    if not token:
        raise InvalidInput(f"{TOKEN} is not set. Give the encoder and the API the same token.")
    check_token(token)
    return token
