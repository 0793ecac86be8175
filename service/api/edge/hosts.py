"""Under which host names the service answers, and to which web pages.

A page of another site can make a browser on this machine call us, either across origins (it sends Origin) or by giving
its own name our address (DNS rebinding: Host is then that name). Both are refused unless the operator allows them.
A numeric address cannot be rebound, so where we listen beyond loopback any of them is accepted.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from service.api.problems import Problem
from service.net.addresses import is_loopback
from service.settings import Settings

_MOST_REMEMBERED = 1_000


class Hosts:
    """The operator's rules, with the Host headers that were found good."""

    def __init__(self, settings: Settings):
        names = {"localhost", "127.0.0.1", "[::1]", _bracketed(settings.host), *map(str.lower, settings.allowed_hosts)}
        self._any = "*" in names
        self._names = frozenset(names)
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))
        self._takes_addresses = not is_loopback(settings.host)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)
        self._good: set[bytes] = set()

    def check_host(self, value: bytes | None) -> None:
        """Raises Problem: 400 without a Host, 421 for one that is not ours."""
        if value in self._good:
            return
        if not value:
            raise Problem(400, "the request has no Host header, or several")
        if not self._is_ours(_without_port(value.decode("latin-1").lower())):
            raise Problem(
                421,
                "Host is not a name of this service; use its own name, or add this one to NML_ALLOWED_HOSTS",
            )
        if len(self._good) < _MOST_REMEMBERED:
            self._good.add(value)

    def check_origin(self, origin: bytes, host: bytes | None) -> bool:
        """Whether the origin is a foreign one that the operator allows; our own is not foreign.

        Raises:
            Problem: 403, the origin is not allowed.
        """
        text = origin.decode("latin-1").lower()
        if "*" in self._origins or text in self._origins:
            return True
        if host is not None and _netloc(text) == host.decode("latin-1").lower():
            return False
        raise Problem(403, "web pages of this origin may not call the service; add it to NML_ALLOWED_ORIGINS")

    def _is_ours(self, name: str) -> bool:
        if self._any or name in self._names or (self._endings and name.endswith(self._endings)):
            return True
        return self._takes_addresses and _is_address(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _bracketed(host: str) -> str:
    return f"[{host.lower()}]" if ":" in host and not host.startswith("[") else host.lower()


def _netloc(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
