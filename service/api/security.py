"""Who asks, and what they may do.

The guard settles this for every path before routing, so that no route can be forgotten: reading needs the scope `read`,
also where the question is posed in a body (`question_of`), everything else `submit`; only the probes, and the files of
the console (service.api.console), are public. What belongs to another key needs `admin` (`Caller.may_change`). Without
required keys, a caller without one may do everything; a wrong key is refused all the same.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import anyio
import anyio.to_thread
from fastapi import Request

from service.api.problems import Problem
from service.store import Store
from service.store.records import Key

PUBLIC = frozenset({"/livez", "/readyz"})
CALLER = "nml.caller"  # key of the ASGI scope
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
KEPT_SECONDS = 5.0  # a revoked key is refused after this long at the latest
OUTAGE_SECONDS = 86_400.0  # for so long a key is good for what may be asked while the database is away
_KEPT = 10_000  # keys
_LOOKUPS = 8  # at a time, so that a flood of wrong keys leaves threads to everyone else
_LONGEST = 200  # characters of a key; ours have 81
_QUESTION = re.compile(r"/v1/embeddings/[^/]+/(lookup|neighbors|recommend|scores|compare|embed|classify)")
_ESTIMATES = "/v1/estimates"
_REALM = 'Bearer realm="nml"'


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent the request."""

    key: Key | None  # none: no key is needed, and none was given

    @property
    def owner(self) -> str | None:
        """By which jobs and data sets are filed: the key's id."""
        return None if self.key is None else self.key.id

    def allows(self, scope: str) -> bool:
        return self.key is None or self.key.allows(scope)

    def may_change(self, owner: str | None) -> bool:
        """Whether what `owner` made is theirs to cancel or delete."""
        return self.allows("admin") or (self.key is not None and self.key.id == owner)


ANYONE = Caller(None)


def caller_of(request: Request) -> Caller:
    """The caller, whom the guard has already let in."""
    caller: Caller = request.scope[CALLER]
    return caller


def check_may_change(request: Request, owner: str | None) -> None:
    """Raises Problem 403 unless the caller made it, or is an admin."""
    if not caller_of(request).may_change(owner):
        raise Problem(403, "only the key that created it, or one with the scope admin, may change it")


def needed_scope(method: str, path: str) -> str | None:
    """The scope that a request needs; none for the public probes."""
    if method in SAFE_METHODS:
        return None if path in PUBLIC else "read"
    is_asked = question_of(method, path) is not None or (method == "POST" and path == _ESTIMATES)
    return "read" if is_asked else "submit"


def question_of(method: str, path: str) -> str | None:
    """What a request asks for that has a body and yet changes nothing: lookup, neighbors, …; none: it is another."""
    found = _QUESTION.fullmatch(path) if method == "POST" else None
    return None if found is None else found[1]


def given_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The text of the key that a request carries, "" for one that cannot be right, none if there is none."""
    bearer = other = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, text = value.partition(b" ")
            bearer = text.strip() if scheme.lower() == b"bearer" and bearer is None else b""
        elif name == b"x-api-key":
            other = value.strip()
    found = bearer if bearer is not None else other
    if found is None:
        return None
    return found.decode() if len(found) <= _LONGEST and found.isascii() else ""


class Keyring:
    """Keys that were found good a moment ago, so that not every request asks the database."""

    def __init__(self, store: Store):
        self._store = store
        self._lookups = anyio.CapacityLimiter(_LOOKUPS)
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()

    def remembered(self, text: str) -> Caller | None:
        """The caller with this key, if it was looked up in the last seconds."""
        entry = self._known.get(text)
        if entry is None or entry[0] < time.monotonic():
            return None
        return entry[1]

    def good_before(self, text: str) -> Caller | None:
        """The caller with this key, if it was good within the last day: for when the database cannot be asked."""
        until, caller = self._known.get(text, (-OUTAGE_SECONDS, None))
        if caller is None or caller.key is None or until + OUTAGE_SECONDS < time.monotonic():
            return None
        return caller if caller.key.expires is None or caller.key.expires > time.time() else None

    async def look_up(self, text: str) -> Caller:
        """The caller with this key.

        Raises:
            Problem: 401, the key is wrong, revoked or expired.
            Unavailable: the database does not answer.
        """
        # in a thread even where reads do not wait: now and then it notes when the key was used
        key = None
        if text:
            key = await anyio.to_thread.run_sync(self._store.keys.check, text, limiter=self._lookups)
        if key is None:
            self._known.pop(text, None)
            raise unauthorized("the API key is wrong, revoked or expired", ', error="invalid_token"')
        seconds = KEPT_SECONDS if key.expires is None else min(KEPT_SECONDS, key.expires - time.time())
        self._known[text] = (time.monotonic() + seconds, Caller(key))
        self._known.move_to_end(text)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return self._known[text][1]


def unauthorized(detail: str, more: str = "") -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": _REALM + more})


def check_scope(caller: Caller, scope: str | None) -> None:
    """Raises Problem 403 unless the caller's key has the scope."""
    if scope is not None and not caller.allows(scope):
        challenge = f'{_REALM}, error="insufficient_scope", scope="{scope}"'
        raise Problem(
            403, f"this key lacks the scope {scope}; use one that has it", headers={"WWW-Authenticate": challenge}
        )
